"""Engines that accept requests and do not run them, behind a real agent: processes that are stopped and continued."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.health.outlier_ejection import EjectionRules, EjectionState
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.engines import EngineProcess, running_engines
from tests.support.planet import MODEL
from tests.support.sockets import Answer, RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until

RULES = EjectionRules(base_s=0.4, suspect_after_s=1.0)
STOPPED, WELL = 0, 1
LIMITS = Limits(idle_linger_s=0.0)


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "regional_agent.endpoints.endpoint_set.OutlierDetection", lambda rng: OutlierDetection(RULES, 0.0, rng=rng)
    )


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    stopped, well = tmp_path_factory.mktemp("stopped"), tmp_path_factory.mktemp("well")
    with running_engines(stopped, {"name": "e"}) as first, running_engines(well, {"name": "e"}) as second:
        yield [first, second]


@asynccontextmanager
async def between(processes: list[EngineProcess], directory: Path) -> AsyncIterator[Agent]:
    addresses = [Address.parse(process.urls["e"]) for process in processes]
    async with running_agent(directory, addresses, limits=LIMITS) as running:
        running.endpoints.start()
        try:
            await until(lambda: running.endpoints.pool(MODEL).ready == 2)
            yield running
        finally:
            for process in processes:
                os.kill(process.popen.pid, signal.SIGCONT)
            await running.endpoints.stop()


async def ask(running: Agent, path: str = "/v1/chat/completions") -> Answer:
    client = await RawClient.connect(running.traffic)
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}).encode()
    client.send(post(body, "x-lab-output-tokens: 5", path=path))
    try:
        return await client.answer()
    finally:
        client.close()


def stopped(running: Agent) -> Endpoint:
    return running.endpoints.pool(MODEL).endpoints[STOPPED]


async def test_requests_at_a_stopped_engine_are_served_by_its_sibling(
    processes: list[EngineProcess], tmp_path: Path
) -> None:
    async with between(processes, tmp_path) as running:
        assert [(await ask(running)).status for _ in range(4)] == [200] * 4
        os.kill(processes[STOPPED].popen.pid, signal.SIGSTOP)
        asked = [asyncio.create_task(ask(running)) for _ in range(6)]
        await until(lambda: stopped(running).ejection.state is not EjectionState.NONE)
        answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [200] * 6
        assert all(b"[DONE]" in answer.body for answer in answers)
        assert not stopped(running).view.ready or stopped(running).view.trial
        retries = running.metrics.render().decode()
        assert 'penstock_agent_retries_total{reason="endpoint_suspect"} 0.0' not in retries
        os.kill(processes[STOPPED].popen.pid, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            while stopped(running).ejection.state is not EjectionState.NONE:
                assert (await ask(running)).status == 200
        assert running.held() == 0


async def stay_silent(engine: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600.0)


async def send_a_head_alone(engine: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    await asyncio.sleep(3600.0)


async def answer_well(engine: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


@asynccontextmanager
async def updating(running: Agent) -> AsyncIterator[None]:
    """The endpoints' timer alone: scripted engines answer no probes."""
    task = asyncio.create_task(running.endpoints._keep_updating())
    try:
        yield
    finally:
        task.cancel()


@pytest.mark.parametrize("script", [stay_silent, send_a_head_alone])
async def test_a_request_leaves_a_suspect_engine_and_is_cancelled_there(script: object, tmp_path: Path) -> None:
    async with (
        engine(script) as hung,  # type: ignore[arg-type]
        engine(answer_well) as well,
        running_agent(tmp_path, [hung.address, well.address], limits=LIMITS) as running,
        updating(running),
    ):
        asked = [asyncio.create_task(ask(running)) for _ in range(4)]
        assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 4
        assert hung.requests
        await asyncio.wait_for(hung.closed_by_client.wait(), PATIENCE_S)
        assert running.held() == 0
        assert running.endpoints.pool(MODEL).ejected == 1


async def test_a_request_that_hangs_every_engine_is_moved_once(tmp_path: Path) -> None:
    async with (
        engine(stay_silent) as first,
        engine(stay_silent) as second,
        engine(stay_silent) as third,
        engine(stay_silent) as fourth,
        running_agent(tmp_path, [hung.address for hung in (first, second, third, fourth)], limits=LIMITS) as running,
        updating(running),
    ):
        asked = asyncio.create_task(ask(running))
        await until(lambda: running.endpoints.pool(MODEL).ejected == 2)
        await asyncio.sleep(0.5)  # several intervals of the timers
        assert sum(len(hung.requests) for hung in (first, second, third, fourth)) == 2
        assert not asked.done()
        asked.cancel()
        await until(lambda: running.held() == 0)


async def test_a_stall_of_all_engines_makes_none_suspect(tmp_path: Path) -> None:
    async with (
        engine(stay_silent) as first,
        engine(stay_silent) as second,
        running_agent(tmp_path, [first.address, second.address], limits=LIMITS) as running,
        updating(running),
    ):
        asked = [asyncio.create_task(ask(running)) for _ in range(6)]
        await until(lambda: running.held() == 6)
        members = running.endpoints.pool(MODEL).endpoints
        await until(lambda: all(member.sample.silent_s(member.now()) > 2 * RULES.suspect_after_s for member in members))
        assert running.endpoints.pool(MODEL).ejected == 0
        for task in asked:
            task.cancel()
        await until(lambda: running.held() == 0)
