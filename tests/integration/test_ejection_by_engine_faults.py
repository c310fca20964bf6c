"""What clients receive while engines fail in each way: real engines and sockets, and one agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.answers.held_text import MAX_UNDECIDED_BYTES
from penstock.health.outlier_ejection import EjectionRules, EjectionState
from penstock.policy.kinds.tenants import Tenant
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.agents import Agent, running_agent
from tests.support.chats import JSON_ANSWER
from tests.support.clocks import AdvancingClock
from tests.support.engines import EngineProcess, running_engines
from tests.support.planet import MODEL
from tests.support.sockets import Answer, RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until

RULES = EjectionRules(base_s=60.0, consecutive_failures=3)
SICK, WELL = 0, 1


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with running_engines(tmp_path_factory.mktemp("engines"), {"name": "sick"}, {"name": "well"}) as running:
        yield running


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> AdvancingClock:
    """The clock that ends ejections; a test advances it."""
    clock = AdvancingClock()
    monkeypatch.setattr(
        "regional_agent.endpoints.endpoint_set.OutlierDetection",
        lambda rng: OutlierDetection(RULES, 0.0, clock, rng),
    )
    return clock


@asynccontextmanager
async def between(process: EngineProcess, directory: Path, **faults: Any) -> AsyncIterator[Agent]:
    """Run an agent in front of both engines, the first with faults."""
    addresses = [Address.parse(process.urls[name]) for name in ("sick", "well")]
    await turn(addresses[SICK])
    async with running_agent(directory, addresses) as agent:
        agent.endpoints.start()
        try:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 2)
            await turn(addresses[SICK], **faults)
            yield agent
        finally:
            await turn(addresses[SICK])
            await agent.endpoints.stop()


async def turn(address: Address, **faults: Any) -> None:
    connections = UpstreamPool()
    answer = await fetch(
        connections, address, FetchRequest("/lab/faults", body=json.dumps(faults).encode()), timeout_s=20.0
    )
    connections.close()
    assert answer.status == 200


async def ask(agent: Agent, model: str = MODEL) -> Answer | None:
    """Send a short completion; None if the connection broke."""
    client = await RawClient.connect(agent.traffic)
    request = {"model": model, "messages": [{"role": "user", "content": "hello"}], "stream": True}
    client.send(post(json.dumps({**request, "max_tokens": 5, "ignore_eos": True}).encode()))
    try:
        return await client.answer()
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return None
    finally:
        client.close()


def first(agent: Agent) -> Endpoint:
    return agent.endpoints.pools[MODEL].endpoints[SICK]


async def ask_until_ejected(agent: Agent) -> None:
    for _ in range(200):
        await ask(agent)
        if first(agent).ejection.is_ejected:
            return
    pytest.fail("never ejected")


@pytest.mark.parametrize(
    "faults", [{"error_rate": 1.0}, {"error_rate": 1.0, "error_status": 503}, {"die_mid_stream": 2}]
)
async def test_an_engine_that_fails_requests_only_is_ejected_until_one_succeeds(
    process: EngineProcess, tmp_path: Path, clock: AdvancingClock, faults: dict[str, Any]
) -> None:
    async with between(process, tmp_path, **faults) as agent:
        await ask_until_ejected(agent)
        assert first(agent).health.ready
        assert not first(agent).view.ready
        answers = await asyncio.gather(*(ask(agent) for _ in range(4)))
        assert [answer.status for answer in answers if answer] == [200] * 4
        clock.skipped_s += 2 * RULES.base_s
        await until(lambda: first(agent).ejection.state is EjectionState.TRIAL)
        await turn(first(agent).address)
        await until_trusted(agent)
        assert agent.held() == 0


async def until_trusted(agent: Agent) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while first(agent).ejection.state is not EjectionState.NONE:
            answer = await ask(agent)
            assert answer is not None
            assert answer.status == 200


async def test_client_errors_eject_no_endpoint(process: EngineProcess, tmp_path: Path) -> None:
    async with between(process, tmp_path) as agent:
        for _ in range(20):
            client = await RawClient.connect(agent.traffic)
            client.send(post(json.dumps({"model": MODEL, "messages": "no list"}).encode()))
            assert (await client.answer()).status == 400
            client.close()
        assert agent.endpoints.pools[MODEL].ejected == 0


async def test_a_full_engine_is_busy_and_not_ejected(process: EngineProcess, tmp_path: Path) -> None:
    async with between(process, tmp_path, reject=True) as agent:
        answers = [await ask(agent) for _ in range(20)]
        assert {answer.status for answer in answers if answer} == {200}
        assert first(agent).ejection.state is EjectionState.NONE


async def test_an_engine_that_reports_unhealthy_gets_no_requests_until_it_recovers(
    process: EngineProcess, tmp_path: Path
) -> None:
    async with between(process, tmp_path, refuse_health=True) as agent:
        pool = agent.endpoints.pools[MODEL]
        await until(lambda: pool.ready == 1)
        assert not first(agent).ejection.is_ejected
        await turn(first(agent).address)
        await until(lambda: pool.ready == 2)


async def test_the_only_engine_of_a_model_is_never_ejected(process: EngineProcess, tmp_path: Path) -> None:
    address = Address.parse(process.urls["sick"])
    await turn(address, error_rate=1.0)
    async with running_agent(tmp_path, [address]) as agent:
        for _ in range(10):
            answer = await ask(agent)
            assert answer is not None
            assert answer.status == 500
        assert agent.endpoints.pools[MODEL].ready == 1
    await turn(address)


async def stall_after_one_chunk(
    engine: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter
) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: x\n\n\r\n"
    )
    await asyncio.sleep(60.0)


async def answer_well(engine: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(JSON_ANSWER)


async def test_streams_that_stall_count_against_their_engine_and_clients_deadlines_do_not(tmp_path: Path) -> None:
    limits = Limits(stall_timeout_s=0.2, idle_linger_s=0.0)
    async with (
        engine(stall_after_one_chunk) as stalling,
        engine(answer_well) as well,
        running_agent(tmp_path, [stalling.address, well.address], limits=limits) as agent,
    ):
        await ask_until_ejected(agent)
        assert [view.ready for view in agent.endpoints.pools[MODEL].views] == [False, True]
    patient = Limits(stall_timeout_s=20.0, idle_linger_s=0.0)
    async with (
        engine(stall_after_one_chunk) as stalling,
        engine(stall_after_one_chunk) as sibling,
        running_agent(tmp_path / "2", [stalling.address, sibling.address], limits=patient) as agent,
    ):
        await asyncio.gather(*(give_up_after_the_head(agent) for _ in range(8)))
        assert min(len(stalling.requests), len(sibling.requests)) >= RULES.consecutive_failures
        assert agent.endpoints.pools[MODEL].ejected == 0


async def break_for_poison(engine: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    if b"poison" not in received.body:
        await answer_well(engine, received, writer)
        return
    if b"late" in received.body:
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n{"choices": "' + b"x" * MAX_UNDECIDED_BYTES)
        await writer.drain()
    writer.transport.abort()


@pytest.mark.parametrize("prompt", ["poison", "late poison"])
async def test_a_tenant_whose_prompts_break_engines_ejects_none(tmp_path: Path, prompt: str) -> None:
    async def send(tenant: str, content: str) -> int:
        client = await RawClient.connect(agent.traffic)
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]}).encode()
        client.send(post(body, f"Authorization: Bearer {tenant}"))
        try:
            return (await client.answer()).status
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return 0
        finally:
            client.close()

    together = asyncio.Barrier(3)

    async def one_at_each(engine: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.body and (b"poison" not in received.body or b"late" in received.body):
            await together.wait()
        await break_for_poison(engine, received, writer)

    async def send_to_each(tenant: str, content: str) -> list[int]:
        return await asyncio.gather(*(send(tenant, content) for _ in range(3)))

    async with (
        engine(one_at_each) as first,
        engine(one_at_each) as second,
        engine(one_at_each) as third,
        running_agent(
            tmp_path, [first.address, second.address, third.address], anonymous=None, slots=1, queue=0
        ) as agent,
    ):
        tenants = {name: Tenant(name, "open", (sha256(name.encode()).hexdigest(),)) for name in "ab"}
        agent.config.policy = msgspec.structs.replace(agent.config.policy, tenants=tenants)
        agent.endpoints.start()
        try:
            assert 200 not in await send_to_each("a", prompt)
            assert await send_to_each("b", "hello") == [200] * 3
            for _ in range(RULES.consecutive_failures + 1):
                assert 200 not in await send_to_each("a", prompt)
            assert agent.endpoints.pools[MODEL].ejected == 0
            assert await send_to_each("b", "hello") == [200] * 3
        finally:
            await agent.endpoints.stop()


async def test_an_engine_that_closes_every_connection_is_ejected_and_stays_healthy(tmp_path: Path) -> None:
    async def close(engine: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.head.startswith(b"GET"):
            await answer_well(engine, received, writer)
        else:
            writer.transport.abort()

    async with (
        engine(close) as sick,
        engine(answer_well) as well,
        running_agent(tmp_path, [sick.address, well.address]) as agent,
    ):
        agent.endpoints.start()
        try:
            for _ in range(200):
                answer = await ask(agent)
                assert answer is not None
                assert answer.status == 200
                assert first(agent).health.ready
                if first(agent).ejection.is_ejected:
                    break
            assert first(agent).ejection.is_ejected
        finally:
            await agent.endpoints.stop()


async def give_up_after_the_head(agent: Agent) -> None:
    """Send a request whose deadline expires during the response."""
    client = await RawClient.connect(agent.traffic)
    client.send(post(json.dumps({"model": MODEL, "messages": []}).encode(), "x-request-timeout-ms: 2000"))
    await client.head()
    while await client.chunk():
        pass
    client.close()
