"""Engines that accept requests and do not run them, behind a real agent: processes that are stopped and continued."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.health.engines.engine_kinds import EngineKind
from penstock.health.outlier_ejection import EjectionRules, EjectionState
from penstock.health.progress import StallReason
from penstock.health.region_health import RegionState
from penstock.policy.kinds.models import Cost, CostUnit
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address
from tests.integration.test_burst_endpoints import PRICE, use_price
from tests.support.agents import Agent, running_agent
from tests.support.chats import JSON_ANSWER, chunk
from tests.support.engines import EngineProcess, running_engines
from tests.support.planet import MODEL
from tests.support.serverless import ServerlessEndpoint
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
            await until(lambda: running.endpoints.pools[MODEL].ready == 2)
            yield running
        finally:
            for process in processes:
                os.kill(process.popen.pid, signal.SIGCONT)
            await running.endpoints.stop()


async def ask(running: Agent, *, streaming: bool = True) -> Answer:
    client = await RawClient.connect(running.traffic)
    request = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": streaming}
    client.send(post(json.dumps({**request, "max_tokens": 5}).encode(), "x-lab-output-tokens: 5"))
    try:
        return await client.answer()
    finally:
        client.close()


def stopped(running: Agent) -> Endpoint:
    return running.endpoints.pools[MODEL].endpoints[STOPPED]


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
    writer.write(JSON_ANSWER)


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
        assert running.endpoints.pools[MODEL].ejected == 1


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
        await until(lambda: running.endpoints.pools[MODEL].ejected == 2)
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
        members = running.endpoints.pools[MODEL].endpoints
        await until(lambda: all(member.sample.silent_s(member.now()) > 2 * RULES.suspect_after_s for member in members))
        assert running.endpoints.pools[MODEL].ejected == 0
        for task in asked:
            task.cancel()
        await until(lambda: running.held() == 0)


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT, COMMENT = b"9\r\ndata: x\n\n\r\n", b"8\r\n: ping\n\n\r\n"


class Freezing:
    """An engine that answers health probes at all times, and requests until it is frozen."""

    def __init__(self) -> None:
        self.is_frozen = False
        self.asked_while_frozen = 0
        self.beginning = b""
        """What a frozen engine sends of a response."""
        self.goes_on = asyncio.Event()
        self.rest = b""
        """What a frozen engine sends once `goes_on` is set."""
        self.ping = b""
        """What its server sends ten times a second, to keep the connection open; empty for nothing."""

    async def __call__(self, engine: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if self.is_frozen and received.head.startswith(b"POST"):
            self.asked_while_frozen += 1
            writer.write(self.beginning)
            while self.ping:
                writer.write(self.ping)
                await asyncio.sleep(0.1)
            await self.goes_on.wait()
            writer.write(self.rest)
            return
        await answer_well(engine, received, writer)


@asynccontextmanager
async def frozen_after_a_history(
    directory: Path, siblings: int, *, streaming: bool = True, **fields: Any
) -> AsyncIterator[tuple[Agent, Freezing]]:
    """Run an agent whose first engine freezes after it has served, with siblings, or with another region if none."""
    freezing = Freezing()
    async with AsyncExitStack() as stack:
        hung = await stack.enter_async_context(engine(freezing))
        well = [await stack.enter_async_context(engine(answer_well)) for _ in range(max(1, siblings))]
        peers = {}
        if not siblings:
            elsewhere = running_agent(directory / "elsewhere", [well[0].address], region="eu-es", limits=LIMITS)
            peers["eu-es"] = (await stack.enter_async_context(elsewhere)).peer
        here = [hung.address, *(engine.address for engine in well[:siblings])]
        running = await stack.enter_async_context(running_agent(directory, here, limits=LIMITS, peers=peers, **fields))
        running.endpoints.start()
        stack.push_async_callback(running.endpoints.stop)
        await until(lambda: running.endpoints.pools[MODEL].ready == len(here))
        members = running.endpoints.pools[MODEL].endpoints
        async with asyncio.timeout(PATIENCE_S):
            while members[0].completions < 4:
                assert (await ask(running, streaming=streaming)).status == 200
        freezing.is_frozen = True
        yield running, freezing


@pytest.mark.parametrize("siblings", [0, 1, 2])
async def test_a_request_at_a_frozen_engine_is_moved_and_so_is_each_trial(tmp_path: Path, siblings: int) -> None:
    async with frozen_after_a_history(tmp_path, siblings) as (running, freezing):
        frozen = running.endpoints.pools[MODEL].endpoints[0]
        async with asyncio.timeout(PATIENCE_S):
            while freezing.asked_while_frozen < 3:
                assert (await ask(running)).status == 200
        assert frozen.health.ready, "its health probes are good"
        assert frozen.ejection.ejections >= 2
        assert running.held() == 0
        freezing.is_frozen = False
        async with asyncio.timeout(PATIENCE_S):
            while frozen.ejection.state is not EjectionState.NONE:
                assert (await ask(running)).status == 200


CHUNK = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]}\n\n'
REST = b'data: {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("elsewhere", [False, True], ids=["sibling", "region"])
@pytest.mark.parametrize("kind", [EngineKind.HTTP, EngineKind.VLLM])
async def test_a_stream_leaves_a_suspect_engine_only_if_another_can_continue_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: EngineKind, elsewhere: bool
) -> None:
    monkeypatch.setattr("regional_agent.proxy.responses.relayed_response.MAX_CHECK_INTERVAL_S", 0.1)
    async with frozen_after_a_history(tmp_path, 0 if elsewhere else 1) as (running, freezing):
        running.continue_streams(kind)
        running.peers.extends_text = kind is EngineKind.VLLM
        freezing.beginning, freezing.rest = STREAM + chunk(CHUNK), chunk(REST) + b"0\r\n\r\n"
        frozen = running.endpoints.pools[MODEL].endpoints[0]
        async with asyncio.timeout(PATIENCE_S):
            while not freezing.asked_while_frozen:
                client = await RawClient.connect(running.traffic)
                client.send(post(json.dumps({"model": MODEL, "messages": [{"role": "user"}], "stream": True}).encode()))
                await client.head()
        await until(lambda: frozen.ejection.state in (EjectionState.TRIAL, EjectionState.TRIAL_RUNNING))
        freezing.goes_on.set()
        body = b""
        while part := await client.chunk():
            body += part
        client.close()
        if kind is EngineKind.HTTP:
            assert body == CHUNK + REST
            assert running.continued() == {}
        else:
            assert b'"stream_stalled"' in body, "the other engine does not continue it after all"
        await until(lambda: running.held() == 0)


async def test_a_long_answer_after_short_ones_stays_at_its_engine(tmp_path: Path) -> None:
    async with frozen_after_a_history(tmp_path, 1, streaming=False) as (running, freezing):
        freezing.rest = JSON_ANSWER
        frozen = running.endpoints.pools[MODEL].endpoints[0]
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}).encode()
        clients = []
        async with asyncio.timeout(PATIENCE_S):
            while not freezing.asked_while_frozen:
                clients.append(await RawClient.connect(running.traffic))
                clients[-1].send(post(body))
                await until(lambda: freezing.asked_while_frozen > 0 or running.held() == 0)
        await until(lambda: frozen.sample.may_be_long)
        await until(lambda: frozen.sample.silent_s(frozen.now()) > 2.0 * RULES.suspect_after_s)
        assert frozen.ejection.state is EjectionState.NONE
        freezing.goes_on.set()
        assert (await clients[-1].answer()).status == 200
        assert freezing.asked_while_frozen == 1
        for client in clients:
            client.close()


IMAGE = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 32\r\n\r\n{"data": [{"b64_json": "aGk="}]}'
)


async def test_the_first_image_of_an_engine_stays_there_while_its_sibling_is_idle(tmp_path: Path) -> None:
    gpus = [Freezing(), Freezing()]
    for gpu in gpus:
        gpu.is_frozen, gpu.rest = True, IMAGE
    async with (
        engine(gpus[0]) as one,
        engine(gpus[1]) as two,
        running_agent(tmp_path, [one.address, two.address], limits=LIMITS) as running,
    ):
        policy = running.config.policy
        model = replace(policy.models[MODEL], cost=Cost(CostUnit.REQUEST, output_unit_s=0.05))
        running.config.policy = replace(policy, models={**policy.models, MODEL: model})
        running.endpoints.start()
        try:
            await until(lambda: running.endpoints.pools[MODEL].ready == 2)
            client = await RawClient.connect(running.traffic)
            client.send(post(json.dumps({"model": MODEL, "prompt": "a cat"}).encode(), path="/v1/images/generations"))
            members = running.endpoints.pools[MODEL].endpoints
            await until(lambda: max(each.sample.silent_s(each.now()) for each in members) > 2.0 * RULES.suspect_after_s)
            assert {each.ejection.state for each in members} == {EjectionState.NONE}
            for gpu in gpus:
                gpu.goes_on.set()
            assert (await client.answer()).status == 200
            assert sum(gpu.asked_while_frozen for gpu in gpus) == 1, "it is not sent again"
            client.close()
        finally:
            await running.endpoints.stop()


async def test_long_answers_after_short_ones_stay_at_the_only_engine_there_is(tmp_path: Path) -> None:
    async with frozen_after_a_history(tmp_path, 0, streaming=False) as (running, freezing):
        running.endpoints.serves_elsewhere = lambda model: False
        running.peers.states["eu-es"] = RegionState.FAILED
        freezing.rest = JSON_ANSWER
        frozen = running.endpoints.pools[MODEL].endpoints[0]
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}).encode()
        clients = [await RawClient.connect(running.traffic) for _ in range(4)]
        for client in clients:
            client.send(post(body))
        await until(lambda: frozen.sample.may_all_be_long and not frozen.sample.may_be_long)
        await until(lambda: frozen.sample.silent_s(frozen.now()) > 2.0 * RULES.suspect_after_s)
        assert frozen.ejection.state is EjectionState.NONE
        running.endpoints.serves_elsewhere = lambda model: True
        await until(lambda: frozen.ejection.state is not EjectionState.NONE)
        freezing.goes_on.set()
        for client in clients:
            assert (await client.answer()).status == 200
            client.close()
        assert freezing.asked_while_frozen == 4


CHAT = {"model": MODEL, "messages": [{"role": "user", "content": 'say "tools"'}], "stream": True}
TOOLS = {**CHAT, "tools": [{"type": "function", "function": {"name": "search"}}]}


async def test_a_tool_call_that_an_engine_holds_back_is_no_stall_until_another_request_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regional_agent.proxy.responses.relayed_response.MAX_CHECK_INTERVAL_S", 0.1)
    async with frozen_after_a_history(tmp_path, 1) as (running, freezing):
        freezing.beginning, freezing.rest = STREAM + chunk(CHUNK), chunk(REST) + b"0\r\n\r\n"
        frozen = running.endpoints.pools[MODEL].endpoints[0]
        async with asyncio.timeout(PATIENCE_S):
            while not freezing.asked_while_frozen:
                client = await RawClient.connect(running.traffic)
                client.send(post(json.dumps(TOOLS).encode()))
                await client.head()
        await until(lambda: frozen.sample.may_be_long)
        await until(lambda: frozen.sample.silent_s(frozen.now()) > 2.0 * RULES.suspect_after_s)
        assert frozen.ejection.state is EjectionState.NONE
        freezing.beginning = b""
        async with asyncio.timeout(PATIENCE_S):
            while frozen.ejection.state is EjectionState.NONE:
                others = [await RawClient.connect(running.traffic) for _ in range(4)]
                for other in others:
                    other.send(post(json.dumps(CHAT).encode()))
                for other in others:
                    assert (await other.answer()).status == 200, "it is moved to the other engine"
                    other.close()
        freezing.goes_on.set()
        body = b""
        while part := await client.chunk():
            body += part
        assert body == CHUNK + REST
        client.close()
        await until(lambda: running.held() == 0)


async def test_requests_leave_a_region_whose_only_engine_is_suspect(tmp_path: Path) -> None:
    async with frozen_after_a_history(tmp_path, 0) as (running, freezing):
        assert (await ask(running)).status == 200
        frozen = running.endpoints.pools[MODEL].endpoints[0]
        assert frozen.stall is not None
        assert frozen.stall.reason is StallReason.UNUSUAL
        await until(lambda: frozen.ejection.state is EjectionState.TRIAL)
        trial = asyncio.create_task(ask(running))
        await until(lambda: frozen.ejection.state is EjectionState.TRIAL_RUNNING)
        assert running.endpoints.pools[MODEL].ready == 0, "panic mode does not use it"
        assert (await ask(running)).status == 200
        assert (await trial).status == 200
        assert freezing.asked_while_frozen == 2


async def test_a_request_without_another_target_stays_at_a_frozen_engine(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst:
        entry = {"url": burst.url, "slots": 4}
        async with frozen_after_a_history(tmp_path, 0, burst=[entry]) as (running, _):
            running.peers.states["eu-es"] = RegionState.FAILED
            asked = asyncio.create_task(ask(running))
            frozen = running.endpoints.pools[MODEL].endpoints[0]
            await until(lambda: frozen.ejection.state is EjectionState.TRIAL)
            assert not asked.done()
            asked.cancel()
            await until(lambda: running.held() == 0)
            use_price(running, PRICE)
            assert (await ask(running)).status == 200
            assert len(burst.targets) == 1


@pytest.mark.parametrize("streaming", [True, False])
async def test_streams_and_whole_responses_are_a_history_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    # The estimate of a whole response, without knowledge of the engine, would not be due for 20 s.
    monkeypatch.setattr("penstock.health.progress.DUE_FACTOR", 0.1)
    async with frozen_after_a_history(tmp_path, 0, streaming=streaming) as (running, freezing):
        assert (await ask(running, streaming=not streaming)).status == 200, "in the other region"
        assert freezing.asked_while_frozen == 1
        assert running.held() == 0


@pytest.mark.parametrize(
    ("first", "ping", "continues"),
    [
        (STREAM + EVENT, b"", False),
        (STREAM + EVENT, COMMENT, False),
        (STREAM + COMMENT, COMMENT, False),
        (STREAM + COMMENT, COMMENT, True),
        (STREAM.replace(b"text/event-stream", b"application/json"), b"1\r\n\n\r\n", False),
    ],
    ids=["silent", "pings", "pings alone", "pings alone, may continue", "blank lines"],
)
async def test_streams_without_output_make_an_only_engine_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes, ping: bytes, continues: bool
) -> None:
    monkeypatch.setattr("penstock.http.answer_intake.HOLD_S", 0.1)
    monkeypatch.setattr("regional_agent.proxy.responses.relayed_response.MAX_CHECK_INTERVAL_S", 0.2)
    async with frozen_after_a_history(tmp_path, 0) as (running, freezing):
        if continues:
            running.continue_streams()
        freezing.beginning = first
        freezing.ping = ping
        client = await RawClient.connect(running.traffic)
        client.send(post(json.dumps({"model": MODEL, "messages": [], "stream": True}).encode()))
        await client.head()
        frozen = running.endpoints.pools[MODEL].endpoints[0]
        await until(lambda: frozen.ejection.state is EjectionState.SUSPECT)
        assert (await ask(running)).status == 200, "in the other region"
        assert freezing.asked_while_frozen == 1
        client.close()
        await until(lambda: running.held() == 0)
