"""A real PowerDNS beside an agent's socket, asked by a real dig: the commands of docs/dns.md, and unusual queries."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from penstock.health.region_health import RegionState
from tests.support.dns_names import ENTRIES, NAMES, NameServer, a_name, all_live, dns_policy
from tests.support.paths import ROOT
from tests.support.powerdns import PowerDns, needs_dig, needs_powerdns, power_dns

pytestmark = [needs_powerdns, needs_dig]

EU_V4, EU_V6 = ("|".join(re.escape(ENTRIES[region].addresses[at]) for region in ("eu-de", "eu-es")) for at in range(2))
AN_ADDRESS = rf"\A({EU_V4})\n\Z"
EU = "eu.api.example.com"

DOCUMENTED = {
    f"{EU} +short": AN_ADDRESS,
    f"{EU} AAAA +short": rf"\A({EU_V6})\n\Z",
    f"{EU} +subnet=203.0.113.0/24": rf"CLIENT-SUBNET: 203.0.113.0/24/24\n[^$]*\bA\t({EU_V4})\n",
    f"{EU} +tcp +short": AN_ADDRESS,
    "api.example.com NS +short": r"\A(?=[^$]*\bns.example.net.\n)[^$]*\bns1.api.example.com.\n",
    "unknown.api.example.com": "status: NXDOMAIN",
    "api.example.com AXFR": "Transfer failed",
}
"""What each command of docs/dns.md prints, by its arguments."""

UNUSUAL = {
    # A prefix that is no place, or the whole of an address.
    f"{EU} +subnet=0.0.0.0/0": rf"CLIENT-SUBNET: 0.0.0.0/0/0\n[^$]*\bA\t({EU_V4})\n",
    f"{EU} +subnet=::/0": rf"CLIENT-SUBNET: ::/0/0\n[^$]*\bA\t({EU_V4})\n",
    f"{EU} +subnet=198.18.0.1/32 +short": AN_ADDRESS,
    f"{EU} +subnet=2001:db8::1/128 +short": AN_ADDRESS,
    # The letters of the question, as resolvers mix them against forged answers, are those of the answer.
    "eU.aPi.ExAmPlE.cOm": rf"eU.aPi.ExAmPlE.cOm.\t+10\tIN\tA\t({EU_V4})\n",
    f"{EU} +edns=1 +noednsneg": r"status: BADVERS[^$]*ANSWER: 0",
    f"{EU} +edns=255 +noednsneg": r"status: BADVERS[^$]*ANSWER: 0",
    f"{EU} +noedns +short": AN_ADDRESS,
    f"{EU} +bufsize=0 +short": AN_ADDRESS,
    f"{EU} +bufsize=65535 +dnssec +short": AN_ADDRESS,
    f"{EU} +ednsopt=8:ffff +ednsopt=65001:ff +ednsflags=0x7fff +short": AN_ADDRESS,
    f"{EU} ANY +notcp +ignore": r"flags: qr aa tc rd; [^$]*ANSWER: 0",
    f"{EU} CNAME": r"status: NOERROR[^$]*ANSWER: 0",
    "api.example.com CNAME": r"status: NOERROR[^$]*ANSWER: 0",
    "api.example.com A": r"status: NOERROR[^$]*ANSWER: 0",
    f"{EU} HTTPS": r"status: NOERROR[^$]*ANSWER: 0",
    f"x.{EU}": "status: NXDOMAIN",
    # A name without records between a name and the zone exists (RFC 8020).
    "eu.v1.api.example.com +short": AN_ADDRESS,
    "v1.api.example.com NS": r"status: NOERROR[^$]*ANSWER: 0",
    "x.v1.api.example.com": "status: NXDOMAIN",
    "example.org": "status: REFUSED",
    ". ANY": "status: REFUSED",
    f"{EU} IXFR=1": "Transfer failed",
    f"{EU} +opcode=NOTIFY": "status: REFUSED",
    f"{EU} +opcode=UPDATE": "status: REFUSED",
    "us-only.api.example.com": r"status: SERVFAIL[^$]*ANSWER: 0",
}


def documented() -> list[str]:
    """The arguments of each dig command of docs/dns.md, without the server."""
    commands = re.findall(r"^dig @ns1\.api\.example\.com (.*?) *(?:#.*)?$", (ROOT / "docs/dns.md").read_text(), re.M)
    return [" ".join(command.split()) for command in commands]


async def expect(pdns: PowerDns, command: str, pattern: str) -> None:
    printed = await pdns.dig(*shlex.split(command))
    assert re.search(pattern, printed), (command, printed)
    assert ENTRIES["us-east"].addresses[0] not in printed, "a forbidden region"


def test_each_documented_command_is_tested() -> None:
    assert documented() == list(DOCUMENTED)


@pytest.mark.parametrize("queries", [DOCUMENTED, UNUSUAL], ids=["documented", "unusual"])
async def test_queries_by_dig(tmp_path: Path, queries: dict[str, str]) -> None:
    path = tmp_path / "dns.sock"
    policy = dns_policy(names=(*NAMES, a_name("eu.v1", tenants=("personal",))))
    async with NameServer(policy).listening(path), power_dns(path, tmp_path / "pdns", cache_ttl="0") as pdns:
        for command, pattern in queries.items():
            await expect(pdns, command, pattern)


async def test_a_type_that_the_nearest_region_lacks_is_of_another_one(tmp_path: Path) -> None:
    """The nearest region has IPv4 addresses alone; the primary of a failover order is answered alone."""
    server, path, us = NameServer(dns_policy()), tmp_path / "dns.sock", "+subnet=198.18.0.0/24"
    async with server.listening(path), power_dns(path, tmp_path / "pdns", cache_ttl="0") as pdns:
        near = ("near.api.example.com", us, "+short")
        assert await pdns.dig(*near, "A") == f"{ENTRIES['us-east'].addresses[0]}\n"
        assert re.fullmatch(rf"({EU_V6})\n", await pdns.dig(*near, "AAAA"))
        assert await pdns.dig("first.api.example.com", "AAAA", "+short") == ""
        server.states = all_live(us_east=RegionState.FAILED)
        assert await pdns.dig("first.api.example.com", "AAAA", "+short") == f"{ENTRIES['eu-de'].addresses[1]}\n"


async def test_no_drained_region_is_an_answer_not_even_the_last(tmp_path: Path) -> None:
    server, path = NameServer(dns_policy()), tmp_path / "dns.sock"
    async with server.listening(path), power_dns(path, tmp_path / "pdns", cache_ttl="0") as pdns:
        server.states = all_live(eu_de=RegionState.DRAINING, eu_es=RegionState.DRAINING)
        await expect(pdns, EU, r"status: SERVFAIL[^$]*ANSWER: 0")
        assert await pdns.dig("page.api.example.com", "+short") == "203.0.113.99\n"
