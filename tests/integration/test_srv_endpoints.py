"""Endpoints from SRV records, by queries to a real DNS server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import dns.rcode
import pytest

from regional_agent.endpoints.discovery import srv_records
from regional_agent.endpoints.discovery.srv_records import SrvResolver
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.dns_server import DnsServer
from tests.support.small_http import Headers, SmallHttp
from tests.support.wait import PATIENCE_S, until

RECORD = "_http._tcp.engines.test"


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    async with DnsServer() as made:
        yield made


@pytest.fixture
async def endpoints(server: DnsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EndpointSet]:
    for name in ("MIN_TTL_S", "RETRY_S", "FALLBACK_AFTER_S", "RETURN_AFTER_S", "CHECK_S"):
        monkeypatch.setattr(srv_records, name, 0.02)
    monkeypatch.setattr(srv_records, "_system_resolver", server.resolver)
    file = tmp_path / "endpoints.yaml"
    file.write_text(f"- {{name: gpus, srv: {RECORD}, models: [m], slots: 8}}\n")
    connections = UpstreamPool()
    made = EndpointSet(EndpointSettings(file, state_dir=tmp_path), connections, Random(1))
    made.start()
    yield made
    await made.stop()
    connections.close()


def in_use(endpoints: EndpointSet) -> dict[str, int]:
    return {str(spec.address): spec.slots for spec in endpoints.sources.specs}


def status(endpoints: EndpointSet) -> dict[str, Any]:
    return dict(endpoints.sources.discovery.status()["srv"][RECORD])


async def test_ports_and_weights_follow_the_record_and_errors_change_nothing(
    server: DnsServer, endpoints: EndpointSet
) -> None:
    await until(lambda: "does not exist" in str(status(endpoints)["problem"]))
    ages_s = endpoints.sources.discovery.ages_s
    assert ages_s() == {f"srv:{RECORD}": inf}
    server.records = {
        (RECORD, "SRV"): ["0 20 8000 a.engines.test.", "0 10 8001 b.engines.test.", "0 0 8002 b.engines.test."],
        ("a.engines.test", "A"): ["10.0.0.1"],
        ("b.engines.test", "AAAA"): ["fd00::2"],
        ("c.engines.test", "A"): ["10.0.0.3", "169.254.169.254"],
    }
    await until(lambda: in_use(endpoints) == {"10.0.0.1:8000": 8, "[fd00::2]:8001": 4, "[fd00::2]:8002": 1})
    assert 0.0 <= ages_s()[f"srv:{RECORD}"] < PATIENCE_S
    server.records[("b.engines.test", "A")] = ["10.0.0.2"]
    await until(lambda: in_use(endpoints) == {"10.0.0.1:8000": 8, "10.0.0.2:8001": 4, "10.0.0.2:8002": 1})
    server.rcode = dns.rcode.SERVFAIL
    await until(lambda: "SERVFAIL" in str(status(endpoints)["problem"]))
    assert len(in_use(endpoints)) == 3
    server.rcode = None
    server.records[RECORD, "SRV"] = ["0 0 9000 c.engines.test."]
    await until(lambda: in_use(endpoints) == {"10.0.0.3:9000": 8})
    await server.stop()
    await until(lambda: status(endpoints)["problem"] is not None)
    assert in_use(endpoints) == {"10.0.0.3:9000": 8}
    await server.start()
    server.records[RECORD, "SRV"] = ["0 0 0 ."]
    await until(lambda: in_use(endpoints) == {})
    assert status(endpoints)["problem"] is None


async def test_a_target_whose_query_fails_keeps_its_addresses(server: DnsServer) -> None:
    server.records = {
        (RECORD, "SRV"): ["0 0 8000 a.engines.test.", "0 0 8000 b.engines.test.", "0 0 8000 c.engines.test."],
        ("a.engines.test", "A"): ["10.0.0.1"],
        ("b.engines.test", "A"): ["10.0.0.2"],
        ("c.engines.test", "A"): ["10.0.0.3"],
    }
    resolver = SrvResolver(Random(1), lambda: None, frozenset, server.resolver)
    resolver.use([RECORD], {})
    assert await resolver.resolve(RECORD)
    restarted = SrvResolver(Random(1), lambda: None, frozenset, server.resolver)
    restarted.use([RECORD], {RECORD: resolver.answers[RECORD].servers})
    server.failing = {"b.engines.test"}
    server.records[RECORD, "SRV"] = ["0 0 8001 a.engines.test.", "0 0 8001 b.engines.test.", "0 0 8000 c.engines.test."]
    del server.records["c.engines.test", "A"]
    assert await restarted.resolve(RECORD)
    servers = [(server.address, server.port) for server in restarted.servers(RECORD)]
    assert servers == [("10.0.0.1", 8001), ("10.0.0.2", 8001)]


async def test_a_long_answer_is_read_over_tcp(server: DnsServer, endpoints: EndpointSet) -> None:
    server.records = {
        (RECORD, "SRV"): [f"0 0 {8000 + number} a.engines.test." for number in range(40)],
        ("a.engines.test", "A"): ["10.0.0.1"],
    }
    await until(lambda: len(in_use(endpoints)) == 40)
    assert (RECORD, "SRV", True) in server.queries


@pytest.mark.parametrize("silent", [False, True])
async def test_a_higher_number_serves_while_no_lower_one_is_ready(
    server: DnsServer, endpoints: EndpointSet, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    def answer(method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        return (200 if target == b"/health" else 404), b""

    async with SmallHttp(answer) as first, SmallHttp(answer) as second:
        server.records = {
            (RECORD, "SRV"): [f"1 0 {first.port} a.engines.test.", f"2 0 {second.port} a.engines.test."],
            ("a.engines.test", "A"): ["127.0.0.1"],
        }
        primary, backup = f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"
        await until(lambda: endpoints.pool("m").ready == 1 and list(in_use(endpoints)) == [primary])
        server.silent = silent
        monkeypatch.setattr(srv_records, "TIMEOUT_S", 10 * PATIENCE_S)
        await first.stop()
        await until(lambda: endpoints.pool("m").ready == 1 and set(in_use(endpoints)) == {primary, backup})
        await first.start()
        await until(lambda: endpoints.pool("m").ready == 1 and list(in_use(endpoints)) == [primary])
