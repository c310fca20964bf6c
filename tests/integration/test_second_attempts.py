"""Second attempts of slow embeddings, between a real agent and scripted engines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.admission.hedging import HedgeDelays
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.http.limits import Limits
from regional_agent.telemetry.outcomes import HedgeOutcome
from tests.support.agents import Agent, running_agent
from tests.support.chats import answers, answers_after, never_responds
from tests.support.otlp_collector import attributes, collector
from tests.support.planet import MODEL
from tests.support.sockets import Answer, RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until

LIMITS = Limits(idle_linger_s=0.0)
EMBEDDINGS = "/v1/embeddings"
BODY = json.dumps({"model": MODEL, "input": "hello"}).encode()


@pytest.fixture(autouse=True)
def short_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HedgeDelays, "delay_s", lambda self, route, model: 0.05)


def save_up(running: Agent, second_attempts: int) -> None:
    """Fill the budget of second attempts, which starts empty."""
    while running.proxy._services.hedging.budget._left < second_attempts:
        running.proxy._services.hedging.budget.request()


async def ask(running: Agent, path: str = EMBEDDINGS, body: bytes = BODY) -> Answer:
    client = await RawClient.connect(running.traffic)
    client.send(post(body, path=path))
    try:
        return await client.answer()
    finally:
        client.close()


def outcomes(running: Agent) -> dict[str, float]:
    counts = {}
    for family in running.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "penstock_agent_hedges_total" and sample.value:
                counts[sample.labels["outcome"]] = sample.value
    return counts


def prefer(first: Endpoint, second: Endpoint) -> None:
    """Send the next request to `first`."""
    first.view.pressure, second.view.pressure = 0.0, 0.5
    first.view.update_score()
    second.view.update_score()


async def settled(running: Agent) -> None:
    await until(lambda: running.held() == 0 and not list(running.proxy.active))


async def test_the_second_endpoint_serves_and_the_first_request_is_cancelled(tmp_path: Path) -> None:
    async with (
        engine(never_responds) as slow,
        engine(answers) as quick,
        running_agent(tmp_path, [slow.address, quick.address], limits=LIMITS) as running,
    ):
        save_up(running, 2)
        members = running.endpoints.pool(MODEL).endpoints
        prefer(members[0], members[1])
        assert (await ask(running)).status == 200
        async with asyncio.timeout(PATIENCE_S):
            await slow.closed_by_client.wait()
        await settled(running)
        assert outcomes(running) == {HedgeOutcome.WON: 1.0}
        assert all(not member.ejection.failures for member in running.endpoints.pool(MODEL).endpoints)
        assert running.counted() == {"ok": len(quick.requests)}


async def test_a_second_attempt_that_serves_is_a_span(tmp_path: Path) -> None:
    async with collector() as otlp, engine(never_responds) as slow, engine(answers) as quick:
        exporter = otlp.exporter()
        async with running_agent(tmp_path, [slow.address, quick.address], limits=LIMITS, exporter=exporter) as running:
            save_up(running, 2)
            prefer(*running.endpoints.pool(MODEL).endpoints)
            assert (await ask(running)).status == 200
            await settled(running)
        await exporter.close()
    attempts = [attributes(span) for _, span in otlp.spans if span.name == f"embeddings {MODEL}"]
    assert [(attempt["penstock.endpoint"], attempt.get("penstock.reason")) for attempt in attempts] == [
        ("gpu-0", "second_attempt_won"),
        ("gpu-1", None),
    ]


async def test_the_first_endpoint_serves_if_it_responds_first(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def first_waits(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if len(gpu_0.requests) + len(gpu_1.requests) == 2:
            release.set()
            await asyncio.Event().wait()
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with (
        engine(first_waits) as gpu_0,
        engine(first_waits) as gpu_1,
        running_agent(tmp_path, [gpu_0.address, gpu_1.address], limits=LIMITS) as running,
    ):
        save_up(running, 1)
        assert (await ask(running)).body == b"ok"
        await settled(running)
        assert outcomes(running) == {HedgeOutcome.LOST: 1.0}
        assert len(gpu_0.requests) == len(gpu_1.requests) == 1


async def fails(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 3\r\n\r\nbad")


async def test_an_error_of_the_second_endpoint_does_not_win(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def answers_later(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await answers(e, received, writer)

    async with (
        engine(answers_later) as slow,
        engine(fails) as broken,
        running_agent(tmp_path, [slow.address, broken.address], limits=LIMITS) as running,
    ):
        save_up(running, 1)
        members = running.endpoints.pool(MODEL).endpoints
        prefer(members[0], members[1])
        asked = asyncio.create_task(ask(running))
        await until(lambda: outcomes(running) == {HedgeOutcome.FAILED: 1.0})
        release.set()
        assert (await asked).status == 200
        await settled(running)


async def test_the_second_attempt_continues_when_the_first_fails(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def first_breaks(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if not release.is_set():
            await release.wait()
            writer.close()
        else:
            await answers(e, received, writer)

    async def second(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        release.set()
        await until(lambda: running.endpoints.pool(MODEL).endpoints[0].probe_now.is_set())
        await answers(e, received, writer)

    async with (
        engine(first_breaks) as first,
        engine(second) as other,
        running_agent(tmp_path, [first.address, other.address], limits=LIMITS) as running,
    ):
        save_up(running, 5)
        members = running.endpoints.pool(MODEL).endpoints
        prefer(members[0], members[1])
        assert (await ask(running)).status == 200
        await settled(running)
        assert len(other.requests) == 1
        assert outcomes(running) == {HedgeOutcome.WON: 1.0}


class LateConnections:
    """Opens connections to one port only once that is permitted."""

    def __init__(self, port: int) -> None:
        self.port, self.wanted, self.permitted = port, asyncio.Event(), asyncio.Event()
        self._connect = asyncio.get_running_loop().create_connection

    async def __call__(self, factory: Any, host: str, port: int, **options: Any) -> Any:
        if port == self.port:
            self.wanted.set()
            await self.permitted.wait()
        return await self._connect(factory, host, port, **options)


async def test_a_second_attempt_is_not_sent_without_the_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()
    async with engine(answers_after(release)) as first, engine(answers) as second:
        late = LateConnections(second.address.port)
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", late)
        async with running_agent(tmp_path, [first.address, second.address], limits=LIMITS) as running:
            save_up(running, 1)
            prefer(*running.endpoints.pool(MODEL).endpoints)
            asked = asyncio.create_task(ask(running))
            async with asyncio.timeout(PATIENCE_S):
                await late.wanted.wait()
            (exchange,) = running.proxy.active
            assert exchange.drop_body()  # type: ignore[attr-defined]
            late.permitted.set()
            await until(lambda: outcomes(running) == {HedgeOutcome.FAILED: 1.0})
            release.set()
            assert (await asked).status == 200
            await settled(running)
            assert not second.requests


async def test_the_budget_and_free_slots_limit_second_attempts(tmp_path: Path) -> None:
    async with (
        engine(never_responds) as gpu_0,
        engine(never_responds) as gpu_1,
        running_agent(tmp_path, [gpu_0.address, gpu_1.address], limits=LIMITS, slots=2) as running,
    ):
        save_up(running, 1)
        asked = [asyncio.create_task(ask(running)) for _ in range(2)]
        await until(lambda: sum(outcomes(running).values()) + running.held() - 2 >= 2)
        assert (outcomes(running), running.held()) == ({HedgeOutcome.NO_BUDGET: 1.0}, 3)
        save_up(running, 5)
        asked += [asyncio.create_task(ask(running)) for _ in range(1)]
        await until(lambda: HedgeOutcome.NO_SLOT in outcomes(running))
        assert running.held() == 4
        for task in asked:
            task.cancel()
        await settled(running)


async def test_chat_is_not_hedged(tmp_path: Path) -> None:
    async with (
        engine(never_responds) as gpu_0,
        engine(never_responds) as gpu_1,
        running_agent(tmp_path, [gpu_0.address, gpu_1.address], limits=LIMITS) as running,
    ):
        save_up(running, 5)
        body = json.dumps({"model": MODEL, "messages": []}).encode()
        asked = asyncio.create_task(ask(running, "/v1/chat/completions", body))
        await until(lambda: running.held() == 1)
        (exchange,) = running.proxy.active
        await until(lambda: bool(gpu_0.requests or gpu_1.requests))
        assert exchange._hedge is None  # type: ignore[attr-defined]
        asked.cancel()
        await settled(running)
