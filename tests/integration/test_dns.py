"""Names of the policy, answered by a real PowerDNS with the shipped configuration, which asks an agent's socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections import Counter
from pathlib import Path

import dns.asyncquery
import dns.edns
import dns.exception
import dns.message
import dns.query
import dns.rcode
import dns.xfr
import dns.zone
import pytest

from adapters.servers.free_ports import LOOPBACK
from penstock.health.region_health import RegionState
from tests.support.dns_names import ADDRESSES, ENTRIES, NameServer, all_live, dns_policy
from tests.support.paths import ROOT
from tests.support.planet import plan
from tests.support.powerdns import PowerDns, needs_powerdns, power_dns
from tests.support.wait import until_async

pytestmark = needs_powerdns

IN_US = "198.18.0.0/24"
IN_SPAIN = "198.18.4.0/24"
IN_GERMANY = "203.0.113.0/24"
BOTH_EU = {ADDRESSES["eu-de"], ADDRESSES["eu-es"]}


async def test_the_zone_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "dns.sock"
    async with NameServer(dns_policy()).listening(path), power_dns(path, tmp_path / "pdns") as pdns:
        assert await pdns.addresses("api.example.com", "NS") == ["ns.example.net.", "ns1.api.example.com."]
        assert await pdns.addresses("ns1.api.example.com") == ["192.0.2.53"]
        assert await pdns.addresses("first.api.example.com") == [ADDRESSES["us-east"]]
        assert await pdns.addresses("first.api.example.com", "AAAA") == []
        assert await pdns.addresses("near.api.example.com", "AAAA", IN_SPAIN) == ["2001:db8::20"]
        assert await pdns.addresses("unknown.api.example.com") == ["NXDOMAIN"]
        assert await pdns.addresses("example.org") == ["REFUSED"]
        missing = await pdns.ask("unknown.api.example.com")
        assert missing.authority[0].ttl == 30


async def test_the_group_of_powerdns_may_use_its_control_socket(tmp_path: Path) -> None:
    """The agent is in that group, and another user. A socket is connected to by who may write to it."""
    path, of_unit = tmp_path / "dns.sock", ROOT / "deploy" / "dns" / "pdns-penstock.conf"
    (umask,) = [line.partition("=")[2] for line in of_unit.read_text().splitlines() if line.startswith("UMask=")]
    before = os.umask(int(umask, 8))
    try:
        async with NameServer(dns_policy()).listening(path), power_dns(path, tmp_path / "pdns"):
            (control,) = (tmp_path / "pdns").rglob("pdns.controlsocket")
            assert stat.filemode(control.stat().st_mode) == "srwxrwx---"
    finally:
        os.umask(before)


async def test_a_client_subnet_decides_and_limits_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "dns.sock"
    async with NameServer(dns_policy()).listening(path), power_dns(path, tmp_path / "pdns") as pdns:
        # The shipped configuration caches answers, which must not reach another subnet.
        for subnet, region in ((IN_US, "us-east"), (IN_SPAIN, "eu-es"), (IN_GERMANY, "eu-de"), (IN_US, "us-east")):
            assert await pdns.addresses("near.api.example.com", subnet=subnet) == [ADDRESSES[region]]
        response = await pdns.ask("near.api.example.com", subnet=IN_SPAIN)
        (option,) = [option for option in response.options if isinstance(option, dns.edns.ECSOption)]
        assert option.scopelen == 24


async def test_a_governed_name_never_has_a_forbidden_region(tmp_path: Path) -> None:
    tempting = {origin: plan(origin, "eu-de+eu-es", us_east=0.99, eu_de=0.01) for origin in ADDRESSES}
    server, path = NameServer(dns_policy(), tempting), tmp_path / "dns.sock"
    async with server.listening(path), power_dns(path, tmp_path / "pdns", cache_ttl="0") as pdns:
        for subnet in ("", IN_US, IN_SPAIN, "0.0.0.0/0", "255.255.255.255/32", "::/0"):
            assert set(await pdns.addresses("eu.api.example.com", subnet=subnet)) <= BOTH_EU
        server.states = all_live(eu_de=RegionState.FAILED, eu_es=RegionState.DRAINING)
        assert await pdns.addresses("eu.api.example.com", subnet=IN_US) == ["SERVFAIL"]
        assert await pdns.addresses("eu.api.example.com") == ["SERVFAIL"]
        assert await pdns.addresses("page.api.example.com") == ["203.0.113.99"]
        assert await pdns.addresses("us-only.api.example.com") == ["SERVFAIL"]
        # SERVFAIL is not cached: the next query is answered by a region that lives again.
        server.states = all_live(eu_de=RegionState.FAILED)
        assert await pdns.addresses("eu.api.example.com") == [ADDRESSES["eu-es"]]


async def test_answers_have_the_plan_s_shares(tmp_path: Path) -> None:
    shares = {"us-east": plan("us-east", "eu-de+eu-es+us-east", us_east=0.8, eu_de=0.2)}
    server, path = NameServer(dns_policy(), shares), tmp_path / "dns.sock"
    async with server.listening(path), power_dns(path, tmp_path / "pdns") as pdns:
        # 1,200 here, for which 3.5 points are three deviations; `test_name_answer` draws 10,000.
        asked = Counter[str]()
        # Few at once: PowerDNS gives up a question that waits too long.
        for _ in range(60):
            found = await asyncio.gather(*(pdns.addresses("open.api.example.com", subnet=IN_US) for _ in range(20)))
            asked.update(address for (address,) in found)
    assert abs(asked[ADDRESSES["us-east"]] / 1_200 - 0.8) < 0.035
    assert asked.keys() == {ADDRESSES["us-east"], ADDRESSES["eu-de"]}


async def test_a_failed_primary_leaves_the_answers(tmp_path: Path) -> None:
    server, path = NameServer(dns_policy()), tmp_path / "dns.sock"
    async with server.listening(path), power_dns(path, tmp_path / "pdns") as pdns:
        assert await pdns.addresses("first.api.example.com") == [ADDRESSES["us-east"]]
        server.states = all_live(us_east=RegionState.FAILED)
        await until_async(lambda: _is_answered(pdns, ADDRESSES["eu-de"]))


async def test_a_socket_that_vanishes_is_servfail_until_it_returns(tmp_path: Path) -> None:
    server, path = NameServer(dns_policy()), tmp_path / "dns.sock"
    async with contextlib.AsyncExitStack() as running:
        first = await running.enter_async_context(server.listening(path))
        pdns = await running.enter_async_context(power_dns(path, tmp_path / "pdns", cache_ttl="0"))
        assert await pdns.addresses("first.api.example.com") == [ADDRESSES["us-east"]]
        await first.close()
        assert await pdns.addresses("first.api.example.com") == ["SERVFAIL"]
        async with server.listening(path):
            await until_async(lambda: _is_answered(pdns, ADDRESSES["us-east"]))


async def test_transfers_and_updates_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "dns.sock"
    async with NameServer(dns_policy()).listening(path), power_dns(path, tmp_path / "pdns") as pdns:
        with pytest.raises((dns.xfr.TransferError, EOFError, OSError)):
            await dns.asyncquery.inbound_xfr(LOOPBACK, dns.zone.Zone("api.example.com"), port=pdns.port, timeout=5)
        update = dns.message.from_text("id 1\nopcode UPDATE\n;ZONE\napi.example.com. IN SOA\n")
        response = await dns.asyncquery.udp(update, LOOPBACK, timeout=5, port=pdns.port)
        assert response.rcode() == dns.rcode.REFUSED
        assert await pdns.addresses("first.api.example.com") == [ADDRESSES["us-east"]]


async def test_queries_of_strangers_reveal_nothing(tmp_path: Path) -> None:
    """Of the server, of the zone, of regions that are not permitted; nor is a small query over UDP answered by much."""
    path, eu = tmp_path / "dns.sock", "eu.api.example.com"
    async with NameServer(dns_policy()).listening(path), power_dns(path, tmp_path / "pdns", cache_ttl="0") as pdns:
        for name in ("version.bind", "version.server", "id.server", "hostname.bind", eu):
            assert (await pdns.ask(name, "TXT", of_class="CH")).answer == [], name
        for name in (eu, "api.example.com"):
            for kind in ("ANY", "AXFR"):
                assert (await pdns.ask(name, kind)).answer == [], "over UDP, a client may state another's address"
        response = await pdns.ask(eu, "ANY", tcp=True)
        found = {item.to_text() for answer in response.answer for item in answer}
        assert found in [set(ENTRIES[region].addresses) for region in ("eu-de", "eu-es")]
        for name in (f"x.{eu}", f"*.{eu}", "*.api.example.com", "\\000.api.example.com", "\\255.api.example.com"):
            assert await pdns.addresses(name) in (["NXDOMAIN"], ["SERVFAIL"])
        for subnet in ("0.0.0.0/0", "10.1.1.0/24", "255.255.255.255/32", "::ffff:198.18.0.0/120", "2002:c612::/48"):
            assert set(await pdns.addresses(eu, subnet=subnet)) <= BOTH_EU


async def test_malformed_packets_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "dns.sock"
    server = NameServer(dns_policy())
    whole = dns.message.make_query("eu.api.example.com", "A", use_edns=0).to_wire()
    bogus_subnets = [
        b"\x00\x01\xff\x00" + b"\xff" * 4,
        b"\x00\x09\x18\x00abc",
        b"\x00\x01\x20\x20" + b"\x01" * 40,
        b"\x00",
    ]
    packets = [whole[:length] for length in range(0, len(whole), 3)] + [whole + b"x" * 60_000, b"\xff" * 600]
    for subnet in bogus_subnets:
        query = dns.message.make_query("eu.api.example.com", "A")
        query.use_edns(0, options=[dns.edns.GenericOption(dns.edns.OptionType.ECS, subnet)])
        packets.append(query.to_wire())
    async with server.listening(path), power_dns(path, tmp_path / "pdns", cache_ttl="0") as pdns:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for packet in packets:
                sender.sendto(packet, (LOOPBACK, pdns.port))
        assert set(await pdns.addresses("eu.api.example.com")) <= BOTH_EU
        assert {answer for name, answer in server.answered if name == "eu.api.example.com"} <= {"eu-de", "eu-es"}


async def _is_answered(pdns: PowerDns, address: str) -> bool:
    try:
        return await pdns.addresses("first.api.example.com") == [address]
    except dns.exception.Timeout:
        return False
