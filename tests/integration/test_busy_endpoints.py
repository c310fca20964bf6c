"""Endpoints that answer no probe because they run a request: a real server with one thread, and one agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path

import pytest

from penstock.health.endpoint_health import EndpointState
from penstock.health.engines.engine_kinds import ENGINES, EngineKind
from penstock.health.outlier_ejection import EjectionRules
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.http.limits import Limits
from tests.support.agents import Agent, running_agent
from tests.support.clocks import AdvancingClock
from tests.support.planet import MODEL
from tests.support.serial_server import SerialServer, serial_server
from tests.support.sockets import RawClient, post
from tests.support.wait import until

BODY = json.dumps({"model": MODEL, "messages": []}).encode()
LIMITS = Limits(idle_linger_s=0.0)
PROBES = {"interval_s": 0.1, "timeout_s": 0.1}
BUSY_S = ENGINES[EngineKind.HTTP].health.busy_s
LATE, FEW = 0.4, 0.2
"""Shares of answered probes: from LATE to below FEW, seven probes are late."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> AdvancingClock:
    """The clock of the endpoints' health; a test advances it."""
    clock = AdvancingClock()
    monkeypatch.setattr(
        "regional_agent.endpoints.endpoint_set.OutlierDetection",
        lambda rng: OutlierDetection(EjectionRules(), 30.0, clock, rng),
    )
    return clock


@pytest.fixture(params=["HTTP/1.0", "HTTP/1.1"])
def server(request: pytest.FixtureRequest) -> Iterator[SerialServer]:
    with serial_server(request.param) as running:
        yield running


@asynccontextmanager
async def in_front_of(
    server: SerialServer, directory: Path, kind: str = "http", *, slots: int = 1
) -> AsyncIterator[Agent]:
    options = {"engine": kind, "health": PROBES}
    async with running_agent(
        directory, [server.address], slots=slots, queue=0, limits=LIMITS, options=options
    ) as agent:
        agent.endpoints.start()
        try:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
            yield agent
        finally:
            await agent.endpoints.stop()


async def send(agent: Agent) -> RawClient:
    client = await RawClient.connect(agent.traffic)
    client.send(post(BODY))
    return client


async def see_late_probes(endpoint: Endpoint) -> None:
    """Wait until seven more probes are late."""
    endpoint.occupation.answers = LATE
    await until(lambda: endpoint.occupation.answers < FEW)


@pytest.mark.parametrize("kind", ["http", "auto", "cog"])
async def test_a_server_with_one_thread_stays_ready_during_a_long_job(
    server: SerialServer, tmp_path: Path, clock: AdvancingClock, kind: str
) -> None:
    async with in_front_of(server, tmp_path, kind) as agent:
        (endpoint,) = agent.endpoints.pools[MODEL].endpoints
        weight = endpoint.view.weight
        first = await send(agent)
        await until(lambda: endpoint.view.in_flight == 1)
        await see_late_probes(endpoint)
        clock.skipped_s += 60.0
        second = await send(agent)
        await until(lambda: agent.waiting() == 1)
        await see_late_probes(endpoint)
        assert (endpoint.health.state, endpoint.health.failure_points) == (EndpointState.READY, 0)
        assert not endpoint.ejection.is_ejected
        assert endpoint.view.weight >= weight
        assert agent.endpoints.pools[MODEL].ready == 1
        server.finish_request()
        assert (await first.answer()).status == 200
        server.finish_request()
        assert (await second.answer()).status == 200
        await until(lambda: not endpoint.occupation.is_engaged)
        assert agent.held() == 0
        for client in (first, second):
            client.close()


async def test_more_slots_than_the_server_has_threads_starve_no_request(server: SerialServer, tmp_path: Path) -> None:
    async with in_front_of(server, tmp_path, slots=8) as agent:
        (endpoint,) = agent.endpoints.pools[MODEL].endpoints
        clients = [await send(agent) for _ in range(4)]
        await until(lambda: endpoint.view.in_flight == 4)
        await see_late_probes(endpoint)
        for _ in clients:
            server.finish_request()
        for client in clients:
            assert (await client.answer()).status == 200
            client.close()
        await until(lambda: not endpoint.occupation.is_engaged)
        assert (endpoint.health.state, endpoint.health.failure_points) == (EndpointState.READY, 0)


async def test_a_job_that_takes_longer_than_anything_explains_is_a_failure(
    server: SerialServer, tmp_path: Path, clock: AdvancingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock skips two minutes at once, after which an agent would judge no endpoint at first.
    monkeypatch.setattr("regional_agent.endpoints.endpoint_progress.MAX_LATE_S", float("inf"))
    async with in_front_of(server, tmp_path) as agent:
        (endpoint,) = agent.endpoints.pools[MODEL].endpoints
        client = await send(agent)
        await until(lambda: endpoint.occupation.busy_since < inf)
        # A probe from before the request may yet be answered.
        await see_late_probes(endpoint)
        clock.skipped_s += BUSY_S
        await until(lambda: endpoint.health.state is EndpointState.DOWN)
        server.finish_request()
        assert (await client.answer()).status == 200
        await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
        client.close()


async def test_a_job_whose_client_left_still_occupies_the_server(
    server: SerialServer, tmp_path: Path, clock: AdvancingClock
) -> None:
    async with in_front_of(server, tmp_path) as agent:
        (endpoint,) = agent.endpoints.pools[MODEL].endpoints
        client = await send(agent)
        await until(lambda: endpoint.occupation.is_engaged)
        client.close()
        await until(lambda: agent.held() == 0)
        await see_late_probes(endpoint)
        assert (endpoint.health.state, endpoint.health.failure_points) == (EndpointState.READY, 0)
        server.finish_request()
        await until(lambda: not endpoint.occupation.is_engaged)


async def test_a_server_that_ends_during_a_job_is_down_at_once(server: SerialServer, tmp_path: Path) -> None:
    async with in_front_of(server, tmp_path) as agent:
        (endpoint,) = agent.endpoints.pools[MODEL].endpoints
        client = await send(agent)
        await until(lambda: endpoint.occupation.is_engaged)
        server.popen.kill()
        assert (await client.answer()).status in (502, 503)
        await until(lambda: endpoint.health.state is EndpointState.DOWN)
        client.close()


async def test_a_late_probe_is_not_repeated(server: SerialServer, tmp_path: Path) -> None:
    async with in_front_of(server, tmp_path) as agent:
        (endpoint,) = agent.endpoints.pools[MODEL].endpoints
        client = await send(agent)
        await until(lambda: endpoint.view.in_flight == 1)
        await see_late_probes(endpoint)
        assert not_accepted(server) <= 2, "one probe, and one from before the job at most"
        server.finish_request()
        assert (await client.answer()).status == 200
        client.close()


async def test_an_address_that_is_no_longer_probed_is_forgotten(server: SerialServer, tmp_path: Path) -> None:
    async with in_front_of(server, tmp_path) as agent:
        serial = agent.endpoints._connections.serial
        await until(lambda: serial == {server.address})
    assert serial == set()


def not_accepted(server: SerialServer) -> int:
    """Connections that the server has not accepted, closed ones included, by the kernel's table (proc_net_tcp)."""
    port, listening = f":{server.address.port:04X}", "0A"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (row,) = [row for row in rows if row[1].endswith(port) and row[3] == listening]
    return int(row[4].split(":")[1], 16)
