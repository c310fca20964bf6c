"""Requests that engines of one region fail, and that another permitted region serves; and the limit of all regions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from penstock.health.region_health import RegionState
from penstock.retries.retry_rules import MAX_BROKEN, MAX_FAILED
from regional_agent.routing.router import MAX_UNREACHABLE
from regional_agent.upstream.address import Address
from tests.support.agents import running_agent
from tests.support.chats import NOBODY, ask, code
from tests.support.failing_engines import FAILED, SERVES, ejected, fails, request
from tests.support.planet import plan
from tests.support.sockets import ReceivedRequest, Script, ScriptedEngine, engine

AWAY = plan("eu-de", "eu-de+eu-es+us-east", us_east=1.0)


@asynccontextmanager
async def several(script: Script, count: int) -> AsyncIterator[list[ScriptedEngine]]:
    """Run `count` engines with the same behaviour."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(engine(script)) for _ in range(count)]


def received(engines: Sequence[ScriptedEngine]) -> int:
    """The number of requests that engines have received."""
    return sum(len(gpu.requests) for gpu in engines)


def addresses(engines: Sequence[ScriptedEngine]) -> list[Address]:
    return [gpu.address for gpu in engines]


async def breaks(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


ENDS = [(fails(500), MAX_FAILED), (fails(200), MAX_FAILED), (breaks, MAX_BROKEN)]


@pytest.mark.parametrize("status", [500, 502, 503])
@pytest.mark.parametrize("engines", [1, 2, 3])
async def test_a_request_that_engines_of_a_region_fail_is_served_by_another_region(
    tmp_path: Path, status: int, engines: int
) -> None:
    async with (
        several(fails(status), engines) as near,
        engine(SERVES) as far,
        running_agent(tmp_path / "server", [far.address], region="us-east") as server,
        running_agent(tmp_path / "origin", addresses(near), peers={"us-east": server.peer}) as origin,
    ):
        for _ in range(8):
            origin.peers.credits["us-east"] = 8
            answer = await ask(origin, body=request(streamed=True))
            assert (answer.status, answer.headers["x-penstock-region"]) == (200, "us-east")
        assert (origin.counted(), origin.held(), server.held()) == ({"ok": 8}, 0, 0)
        assert received(near) == 8 * min(engines, MAX_BROKEN)
        assert ejected(origin) == 0, "no engine of the region serves, so all stay in use"


async def test_the_error_of_the_only_engine_of_each_region_is_forwarded(tmp_path: Path) -> None:
    async with (
        engine(fails(500)) as near,
        engine(fails(500)) as far,
        running_agent(tmp_path / "server", [far.address], region="us-east") as server,
        running_agent(tmp_path / "origin", [near.address], peers={"us-east": server.peer}) as origin,
    ):
        origin.peers.credits["us-east"] = 1
        for _ in range(2):
            answer = await ask(origin, body=request())
            assert (answer.status, answer.body) == (500, FAILED)
        assert len(far.requests) >= 1
        assert origin.counted() == {"engine_error": 2}


@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize("engines", [1, 2])
async def test_a_request_that_engines_of_a_serving_region_fail_is_sent_to_another_region(
    tmp_path: Path, status: int, engines: int
) -> None:
    async with (
        several(fails(status), engines) as bad,
        engine(SERVES) as good,
        running_agent(tmp_path / "east", addresses(bad), region="us-east") as east,
        running_agent(tmp_path / "es", [good.address], region="eu-es") as es,
        running_agent(tmp_path / "origin", [], plan=AWAY, peers={"us-east": east.peer, "eu-es": es.peer}) as origin,
    ):
        for streamed in (True, False):
            answer = await ask(origin, body=request(streamed=streamed))
            assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
        assert (received(bad), len(good.requests)) == (2 * engines, 2)
        counted = (east.counted(), es.counted(), origin.counted())
        assert counted == ({"engine_error": 2}, {"ok": 2}, {"ok": 2}), "one account in each region that had it"
        failures = [endpoint.ejection.failures for endpoint in east.endpoints.every()]
        assert failures == ([2] if engines == 1 else [0, 0]), "a request that two engines fail charges neither"
        origin.peers.states["eu-es"] = RegionState.FAILED
        for error in (1, 2):
            answer = await ask(origin, body=request())
            if status == 503:
                assert (answer.status, code(answer.body)) == (503, "none_ready")
            else:
                assert (answer.status, answer.body, answer.headers["x-engine"]) == (500, FAILED, "a")
                assert answer.headers["x-penstock-region"] == "us-east"
            assert "x-penstock-engine-failed" not in answer.headers
            assert origin.counted() == {"ok": 2, "engine_error": error}
            origin.peers.states["eu-es"] = RegionState.HEALTHY
            next(iter(es.endpoints.every())).address = NOBODY
        assert (east.held(), es.held(), origin.held()) == (0, 0, 0)


async def test_an_error_with_status_200_in_the_only_region_left_is_an_engines(tmp_path: Path) -> None:
    async with (
        engine(fails(200)) as bad,
        running_agent(tmp_path / "east", [bad.address], region="us-east") as east,
        running_agent(tmp_path / "origin", [], peers={"us-east": east.peer}) as origin,
    ):
        answer = await ask(origin, body=request())
        assert (answer.status, code(answer.body), b"us-east" in answer.body) == (502, "engine_failed", True)


@pytest.mark.parametrize(("script", "limit"), ENDS)
@pytest.mark.parametrize("at_origin", [0, 1, 2])
async def test_the_engines_of_all_regions_together_that_fail_a_request_are_limited(
    tmp_path: Path, script: Script, limit: int, at_origin: int
) -> None:
    async with (
        several(script, at_origin) as near,
        several(script, 2) as far,
        several(script, 2) as farther,
        running_agent(tmp_path / "east", addresses(far), region="us-east") as east,
        running_agent(tmp_path / "es", addresses(farther), region="eu-es") as es,
        running_agent(tmp_path / "origin", addresses(near), peers={"us-east": east.peer, "eu-es": es.peer}) as origin,
    ):
        # Two engines of one host that break within a second may be one process; here, each is a host of its own.
        for agent in (origin, east, es):
            for endpoint, host in zip(agent.endpoints.every(), ("127.0.0.1", "localhost"), strict=False):
                endpoint.address = endpoint.address._replace(host=host)
        await ask(origin, body=request())
        assert origin.counted() == {"engine_cut" if script is breaks else "engine_error": 1}
        assert received([*near, *far, *farther]) == limit
        assert received(near) == at_origin, "the own region is first"
        assert (origin.held(), east.held(), es.held()) == (0, 0, 0)


async def test_a_request_leaves_a_region_whose_endpoints_refuse_connections(tmp_path: Path) -> None:
    async with (
        engine(SERVES) as far,
        running_agent(tmp_path / "server", [far.address], region="us-east") as server,
        running_agent(
            tmp_path / "origin", [Address("127.0.0.1", port) for port in range(1, 9)], peers={"us-east": server.peer}
        ) as origin,
    ):
        answer = await ask(origin, body=request())
        assert (answer.status, answer.headers["x-penstock-region"]) == (200, "us-east")
        down = sum(not endpoint.view.ready for endpoint in origin.endpoints.every())
        assert down == MAX_UNREACHABLE
        assert (origin.counted(), origin.held(), server.held()) == ({"ok": 1}, 0, 0)


async def closes_a_kept_connection(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def breaks_within_the_head(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    writer.close()


async def sends_no_http(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01 no HTTP\r\n\r\n")


CUTS = (breaks, closes_a_kept_connection, breaks_within_the_head, sends_no_http)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("script", CUTS)
async def test_a_request_that_the_only_engine_cuts_before_a_response_is_cut(
    tmp_path: Path, script: Script, *, streamed: bool
) -> None:
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        answer = await ask(agent, body=request(streamed=streamed))
        assert (answer.status in (502, 503), len(gpu.requests)) == (True, 1)
        assert (agent.counted(), agent.held()) == ({"engine_cut": 1}, 0)


async def test_a_request_that_the_only_engine_of_the_serving_region_cuts_is_cut_in_both(tmp_path: Path) -> None:
    async with (
        engine(breaks) as gpu,
        running_agent(tmp_path / "east", [gpu.address], region="us-east") as east,
        running_agent(tmp_path / "origin", [], peers={"us-east": east.peer}) as origin,
    ):
        assert (await ask(origin, body=request())).status in (502, 503)
        assert (east.counted(), origin.counted()) == ({"engine_cut": 1}, {"engine_cut": 1})


async def test_a_request_for_which_no_engine_is_ready_is_refused(tmp_path: Path) -> None:
    async with running_agent(tmp_path, []) as agent:
        assert code((await ask(agent, body=request())).body) == "none_ready"
        assert agent.counted() == {"refused": 1}
