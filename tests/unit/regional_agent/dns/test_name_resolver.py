"""Requests of PowerDNS: records, client subnets, and what is not a request."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.dns.client_subnet import subnet_of
from penstock.dns.remote_backend import MAX_LINE_BYTES, BadMessage, read_message
from penstock.health.region_health import RegionState
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.kinds.residency_rules import ResidencyRule
from regional_agent.dns.backend_socket import MAX_CONNECTIONS, BackendSocket
from tests.support.dns_names import NameServer, all_live, dns_policy
from tests.support.wait import until


def asked(server: NameServer, method: str, **parameters: object) -> Any:
    named = {name.replace("_", "-"): value for name, value in parameters.items()}
    line = msgspec.json.encode({"method": method, "parameters": named})
    return msgspec.json.decode(server.resolver.answer(read_message(line))).get("result")


def look_up(server: NameServer, name: str, **parameters: object) -> Any:
    return asked(server, "lookup", **{"qname": name, "qtype": "ANY", "zone_id": -1, **parameters})


def test_a_name_has_all_addresses_of_one_region() -> None:
    assert look_up(NameServer(dns_policy()), "First.API.example.com.") == [
        {"qtype": "A", "qname": "first.api.example.com.", "content": "198.51.100.30", "ttl": 10}
    ]


def test_an_entry_with_a_cname_is_answered_by_it() -> None:
    policy = dns_policy()
    entry = RegionEntry(cname="lb.us.example.net")
    there = msgspec.structs.replace(policy.regions["us-east"], entry=entry)
    server = NameServer(msgspec.structs.replace(policy, regions=policy.regions | {"us-east": there}))
    (record,) = look_up(server, "first.api.example.com.")
    assert (record["qtype"], record["content"]) == ("CNAME", "lb.us.example.net.")


def test_an_answer_to_a_client_subnet_is_valid_for_this_subnet() -> None:
    server = NameServer(dns_policy())
    found = look_up(server, "near.api.example.com.", remote="192.0.2.1", real_remote="198.18.4.0/24")
    assert (found[0]["content"], found[0]["scopeMask"]) == ("192.0.2.20", 24)
    of_resolver = look_up(server, "near.api.example.com.", remote="198.18.4.0", real_remote="198.18.4.0/32")
    assert of_resolver[0]["content"] == "192.0.2.20"
    assert all("scopeMask" not in record for record in of_resolver)
    # A subnet without a place must not decide an answer that resolvers give to all their clients.
    too_large = look_up(server, "near.api.example.com.", remote="198.18.4.0", real_remote="203.0.0.0/8")
    assert too_large == of_resolver


@pytest.mark.parametrize(
    ("real_remote", "prefix", "is_client"),
    [
        ("192.0.2.1/32", 32, False),
        ("203.0.113.0/24", 24, True),
        ("203.0.113.7/32", 32, True),
        ("0.0.0.0/0", 32, False),
        ("128.0.0.0/1", 32, False),
        ("198.18.0.0/15", 32, False),
        ("198.18.0.0/16", 16, True),
        ("2001::/31", 32, False),
        ("2001:db8::/56", 56, True),
        ("fe80::1%eth0/128", 128, True),
        ("203.0.113.9/99", 32, False),
        ("nonsense", 32, False),
        ("", 32, False),
    ],
)
def test_client_subnets_are_distinguished_from_resolvers(real_remote: str, prefix: int | None, is_client: bool) -> None:
    subnet = subnet_of("192.0.2.1", real_remote)
    assert subnet.is_client is is_client
    assert (subnet.network.prefixlen if subnet.network else None) == prefix


@pytest.mark.parametrize(("subnet", "scope"), [("198.0.0.0/8", None), ("198.18.0.0/21", 21)])
def test_a_subnet_with_clients_of_several_countries_has_no_location(subnet: str, scope: int | None) -> None:
    only_eu = ResidencyRule("not-us", client_countries=frozenset({"ES", "DE"}), deny=frozenset({"us-east"}))
    policy = msgspec.structs.replace(dns_policy(), residency=(only_eu,))
    server = NameServer(policy)
    assert look_up(server, "first.api.example.com.", real_remote="198.18.0.0/24")[0]["content"] == "198.51.100.30"
    # Its first address is in the US, others are not.
    (*_, record) = look_up(server, "first.api.example.com.", real_remote=subnet)
    assert record["content"] != "198.51.100.30"
    assert record.get("scopeMask") == scope


@pytest.mark.parametrize("remote", ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "fe80::1%eth0"])
def test_the_address_of_a_resolver_is_no_client_subnet_in_any_form(remote: str) -> None:
    real_remote = f"{remote}/{128 if ':' in remote else 32}"
    assert not subnet_of(remote, real_remote).is_client


def test_without_a_live_region_the_last_resort_or_servfail_is_the_answer() -> None:
    server = NameServer(dns_policy())
    server.states = all_live(eu_de=RegionState.FAILED, eu_es=RegionState.FAILED)
    (record,) = look_up(server, "page.api.example.com.")
    assert record["content"] == "203.0.113.99"
    assert look_up(server, "eu.api.example.com.") is None
    assert server.answered == [("page.api.example.com", "last_resort"), ("eu.api.example.com", "none")]


def test_the_zone_has_the_records_that_are_asked_for() -> None:
    server = NameServer(dns_policy())
    kinds = {kind: look_up(server, "api.example.com.", qtype=kind) for kind in ("SOA", "NS", "ANY", "A")}
    assert [record["qtype"] for record in kinds["SOA"]] == ["SOA"]
    assert [record["qtype"] for record in kinds["NS"]] == ["NS", "NS"]
    assert len(kinds["ANY"]) == 3
    assert kinds["A"] is False


def test_other_names_and_methods_have_no_records() -> None:
    server = NameServer(dns_policy())
    assert look_up(server, "unknown.api.example.com.") is False
    assert look_up(server, "example.org.") is False
    assert asked(server, "list", zonename="api.example.com.") is False
    assert asked(server, "getDomainKeys", name="api.example.com.") is False
    assert asked(server, "initialize", path="/x") is True
    assert [zone["zone"] for zone in asked(server, "getAllDomains", include_disabled=True)] == ["api.example.com."]


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'{"parameters":{}}', b'{"method":1}', b"[" * 3000, b"\xff", b"x" * 5000]
)
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(BadMessage):
        read_message(line)


async def test_a_bad_line_ends_only_its_connection_and_is_logged_once(tmp_path: Path, caplog) -> None:
    server = NameServer(dns_policy())
    path = tmp_path / "dns.sock"
    async with server.listening(path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        for bad in (b"nonsense\n", b"x" * (MAX_LINE_BYTES + 1)):
            other_reader, other = await asyncio.open_unix_connection(str(path))
            other.write(bad)
            with contextlib.suppress(ConnectionError):
                assert await other_reader.read() == b""
            other.close()
        writer.write(b'{"method":"initialize","parameters":{}}\n{"method":"lookup",')
        assert await reader.readline() == b'{"result":true}\n'
        writer.write(b'"parameters":{"qname":"eu.api.example.com.","qtype":"ANY"}}\n')
        assert b"192.0.2." in await reader.readline()
        writer.close()


async def test_connections_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "dns.sock"
    async with NameServer(dns_policy()).listening(path) as socket:
        opened = [await asyncio.open_unix_connection(str(path)) for _ in range(MAX_CONNECTIONS)]
        await until(lambda: len(socket._connections) == MAX_CONNECTIONS)
        reader, writer = await asyncio.open_unix_connection(str(path))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        for _, each in (*opened, (reader, writer)):
            each.close()


async def test_a_client_that_reads_no_answers_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "dns.sock"
    async with NameServer(dns_policy()).listening(path) as socket:
        _, writer = await asyncio.open_unix_connection(str(path))
        line = b'{"method":"lookup","parameters":{"qname":"eu.api.example.com.","qtype":"ANY"}}\n'
        await until(lambda: bool(socket._connections))
        with contextlib.suppress(ConnectionError):
            while socket._connections:
                writer.write(line * 100)
                await writer.drain()
        assert socket._logged == {"answers are not read"}
        writer.close()


async def test_a_successor_replaces_the_socket(tmp_path: Path) -> None:
    server, path = NameServer(dns_policy()), tmp_path / "dns.sock"
    async with server.listening(path), server.listening(path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"method":"initialize"}\n')
        assert await reader.readline() == b'{"result":true}\n'
        writer.close()
    assert isinstance(BackendSocket(path, server.resolver.answer), BackendSocket)
