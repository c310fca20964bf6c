"""DNSSEC of names that an agent answers: PowerDNS signs live, with keys in a second backend."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from collections.abc import Mapping
from pathlib import Path

import dns.dnssec
import dns.message
import dns.name
import dns.query
import dns.rcode
import dns.rdatatype
import pytest

from adapters.servers.free_ports import LOOPBACK
from lab import debian_packages
from tests.support.dns_names import ADDRESSES, ZONE, NameServer, dns_policy
from tests.support.powerdns import needs_powerdns, power_dns

SCHEMA = debian_packages.file("usr/share/pdns-backend-sqlite3/schema/schema.sqlite3.sql")

pytestmark = [needs_powerdns, pytest.mark.skipif(SCHEMA is None, reason="there is no pdns-backend-sqlite3")]


def make_keys(directory: Path, settings: Mapping[str, str]) -> None:
    """Create the database of keys, and a key of the zone, with the commands of docs/dns.md."""
    assert SCHEMA is not None
    with sqlite3.connect(settings["gsqlite3_database"]) as database:
        database.executescript(SCHEMA.read_text())
    modules = [path / "pdns" for path in debian_packages.library_folders() if (path / "pdns").is_dir()]
    lines = ["launch=gsqlite3", *(f"module-dir={path}" for path in modules[:1])]
    lines += [f"{name.replace('_', '-')}={value}" for name, value in settings.items() if name.startswith("gsqlite3")]
    directory.mkdir()
    (directory / "pdns.conf").write_text("\n".join([*lines, ""]))
    pdnsutil = debian_packages.program("pdnsutil")
    assert pdnsutil is not None
    for command in (["create-zone", ZONE.name], ["secure-zone", ZONE.name]):
        subprocess.run(
            [pdnsutil, f"--config-dir={directory}", *command],
            check=True,
            capture_output=True,
            env=debian_packages.environment(),
        )


async def test_answers_are_signed_with_the_key_of_the_zone(tmp_path: Path) -> None:
    path = tmp_path / "dns.sock"
    settings = {
        "launch": "remote,gsqlite3",
        "gsqlite3_database": str(tmp_path / "keys.sqlite3"),
        "gsqlite3_dnssec": "yes",
    }
    await asyncio.to_thread(make_keys, tmp_path / "keys", settings)
    async with NameServer(dns_policy()).listening(path), power_dns(path, tmp_path / "pdns", **settings) as pdns:

        def ask(name: str, kind: str) -> dns.message.Message:
            query = dns.message.make_query(name, kind, want_dnssec=True)
            return dns.query.tcp(query, LOOPBACK, timeout=5, port=pdns.port)

        async def validated(name: str, kind: str) -> dns.message.Message:
            response = await asyncio.to_thread(ask, name, kind)
            owner = dns.name.from_text(name)
            answer = response.get_rrset(response.answer, owner, dns.rdataclass.IN, dns.rdatatype.from_text(kind))
            signature = response.get_rrset(
                response.answer, owner, dns.rdataclass.IN, dns.rdatatype.RRSIG, dns.rdatatype.from_text(kind)
            )
            assert answer is not None, response
            assert signature is not None, response
            dns.dnssec.validate(answer, signature, {zone: keys})
            return response

        zone = dns.name.from_text(ZONE.name)
        found = await asyncio.to_thread(ask, ZONE.name, "DNSKEY")
        keys = found.get_rrset(found.answer, zone, dns.rdataclass.IN, dns.rdatatype.DNSKEY)
        assert keys is not None, found
        answer = await validated("first.api.example.com", "A")
        assert ADDRESSES["us-east"] in answer.to_text()
        await validated(ZONE.name, "SOA")
        missing = await asyncio.to_thread(ask, "unknown.api.example.com", "A")
        assert missing.rcode() == dns.rcode.NXDOMAIN
        assert "NSEC3" in missing.to_text()
        assert (await pdns.addresses("us-only.api.example.com")) == ["SERVFAIL"]
