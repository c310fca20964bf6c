"""Requests with a priority take the slots of running batch requests, where policy permits it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from adapters.servers.redis import RedisServer
from penstock.jobs.batches import item_results
from penstock.ledger.ledger_record import RecordKind
from penstock.policy.kinds.models import Queueing
from tests.integration.test_batches import serving
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, ask
from tests.support.envoys import running_envoy, running_picker
from tests.support.jobs import JobClient, embeds, input_file, job_store, request_line
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until

REQUESTS = 6
SLOTS = 2


def text_of(body: bytes) -> str:
    return body.decode().partition("text ")[2].partition('"')[0]


class Gate:
    """The script of an engine that holds embeddings until it is open, and counts those whose connection closes."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.running: set[str] = set()
        self.starts: list[str] = []
        self.aborted: list[str] = []
        self.chats = 0

    async def __call__(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if b"text " not in received.body:
            self.chats += bool(received.body)
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"choices": [], "data": []}')
            return
        text = text_of(received.body)
        self.running.add(text)
        self.starts.append(text)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.aborted.append(text)
            raise
        finally:
            self.running.discard(text)
        await embeds(e, received, writer)


def preempts(agent: Agent, max_wait_s: float | None = None, patience_s: float = 0.0) -> None:
    policy = agent.config.policy
    percent = 100.0 * patience_s / agent.endpoints.pools[MODEL].service_s
    queueing = Queueing(preempt_batch=True, max_wait_s=max_wait_s, preempt_wait_percent=percent)
    models = {name: replace(model, queueing=queueing) for name, model in policy.models.items()}
    agent.config.policy = replace(policy, models=models)


def youngest_text(agent: Agent) -> str:
    """The text of the youngest running batch request at the agent; the engine may read two connections in any order."""
    running = agent.queue.batch_requests._running
    return text_of(running[max(running, key=lambda attempt: attempt.since)].context.request.body)


def preempted(agent: Agent) -> float | None:
    return agent.metrics.registry.get_sample_value("penstock_agent_batch_preemptions_total")


@pytest.mark.parametrize("queue", [0, 4])
async def test_a_chat_takes_the_slot_of_the_youngest_batch_request(tmp_path: Path, queue: int) -> None:
    gate = Gate()
    ledger = ledger_in(tmp_path / "ledger")
    store = job_store(tmp_path / "store", max_use_percent=100)
    more = {"slots": SLOTS, "queue": queue, "job_store": store, "ledger": ledger}
    async with engine(gate) as gpu, serving(tmp_path, gpu, **more) as (agent, client):
        preempts(agent)
        batch = await client.started(input_file(REQUESTS))
        await until(lambda: len(gate.running) == SLOTS)
        youngest = youngest_text(agent)
        status, _, _ = await ask(agent)
        assert status == 200
        waited = {"priority": "normal"}
        assert agent.metrics.registry.get_sample_value("penstock_agent_queue_priority_requests_total", waited) == 0
        await until(lambda: gate.aborted == [youngest])
        assert preempted(agent) == 1
        await until(lambda: len(gate.running) == SLOTS)
        assert agent.held() == SLOTS
        gate.open.set()
        ended = await client.ended(batch)
        assert ended["request_counts"] == {"total": REQUESTS, "completed": REQUESTS, "failed": 0}
        results = await client.lines(ended["output_file_id"])
        assert sorted(each["custom_id"] for each in results) == [f"r{n}" for n in range(REQUESTS)]
        assert len(gate.starts) == REQUESTS + 1, "one engine run more, that of the preempted request"
        assert agent.counted() == {"ok": REQUESTS + 1}
        endpoint = agent.endpoints.pools[MODEL].endpoints[0]
        assert not endpoint.ejection.is_ejected
        assert agent.proxy.retry_budget.allows_one(agent.proxy.clock())
    lost = [record for record in records_in(tmp_path / "ledger") if record.kind == RecordKind.LOST_ATTEMPT]
    assert [(record.is_overhead, record.price) for record in lost] == [(True, 0.0)]


async def test_a_chat_waits_for_a_slot_before_it_ends_a_request_that_has_run_for_long(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store", max_use_percent=100)

    def has_run_for_long(agent: Agent) -> None:
        for attempt in agent.queue.batch_requests._running:
            attempt.since -= 1000.0

    for patience_s, max_wait_s, runs_long, expected in (
        (100.0, 1000.0, False, "ends a young one"),
        (100.0, 0.0, True, "cannot wait"),
        (0.5, None, True, "has waited"),
        (100.0, 1000.0, True, "waits"),
    ):
        gate = Gate()
        more = {"slots": SLOTS, "queue": 0, "job_store": store}
        async with engine(gate) as gpu, serving(tmp_path, gpu, **more) as (agent, client):
            preempts(agent, max_wait_s, patience_s)
            batch = await client.started(input_file(REQUESTS))
            await until(lambda: len(gate.running) == SLOTS)  # noqa: B023
            if runs_long:
                has_run_for_long(agent)
            began = time.monotonic()
            chat = asyncio.create_task(ask(agent))
            if expected == "waits":
                here = agent.queue.queues
                await until(lambda: here.waiting_here(MODEL) > here.batch_waiting_here(MODEL))  # noqa: B023
                gate.open.set()
            assert (await chat)[0] == 200, expected
            assert preempted(agent) == (0 if expected == "waits" else 1), expected
            if expected == "has waited":
                assert time.monotonic() - began >= patience_s
            gate.open.set()
            assert (await client.ended(batch))["request_counts"]["completed"] == REQUESTS


async def test_a_chat_through_envoy_takes_the_slot_of_a_batch_request(tmp_path: Path) -> None:
    gate = Gate()
    store = job_store(tmp_path / "store", max_use_percent=100)
    async with (
        engine(gate) as gpu,
        serving(tmp_path, gpu, slots=SLOTS, queue=0, job_store=store) as (agent, client),
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [gpu.address]) as front,
    ):
        preempts(agent)
        batch = await client.started(input_file(REQUESTS))
        await until(lambda: len(gate.running) == SLOTS)
        youngest = youngest_text(agent)
        chat = await RawClient.connect(front)
        chat.send(post(BODY))
        assert (await chat.answer()).status == 200
        chat.close()
        await until(lambda: gate.aborted == [youngest])
        gate.open.set()
        assert (await client.ended(batch))["request_counts"]["completed"] == REQUESTS
        assert (preempted(agent), len(gate.starts)) == (1, REQUESTS + 1)


async def test_a_request_that_was_preempted_three_times_runs_to_its_end(tmp_path: Path) -> None:
    gate = Gate()
    store = job_store(tmp_path / "store", max_use_percent=100)
    async with engine(gate) as gpu, serving(tmp_path, gpu, slots=1, queue=0, job_store=store) as (agent, client):
        preempts(agent)
        batch = await client.started(input_file(1))
        for times in (1, 2, 3):
            await until(lambda: len(gate.running) == 1)
            assert (await ask(agent))[0] == 200
            await until(lambda times=times: len(gate.aborted) == times)
        await until(lambda: len(gate.running) == 1)
        chat = await RawClient.connect(agent.traffic)
        chat.send(post(BODY))
        await until(lambda: agent.waiting() == 1)
        gate.open.set()
        assert (await chat.answer()).status == 200
        chat.close()
        assert (await client.ended(batch))["request_counts"]["completed"] == 1
        assert (gate.chats, preempted(agent), len(gate.starts)) == (4, 3, 4)


async def test_a_request_that_may_not_wait_and_is_sent_again_is_preempted_three_times_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_results, "RETRY_BASE_S", 0.01)
    gate = Gate()
    store = job_store(tmp_path / "store", max_use_percent=100)
    async with engine(gate) as gpu, serving(tmp_path, gpu, slots=1, queue=0, job_store=store) as (agent, client):
        preempts(agent, max_wait_s=0.0)
        batch = await client.started(input_file(1))
        for times in (1, 2, 3):
            await until(lambda: len(gate.running) == 1)
            assert (await ask(agent))[0] == 200
            await until(lambda times=times: len(gate.aborted) == times)
        await until(lambda: len(gate.running) == 1)
        assert (await ask(agent))[0] == 429
        gate.open.set()
        assert (await client.ended(batch))["request_counts"]["completed"] == 1
        assert preempted(agent) == 3


async def test_without_the_policy_a_chat_waits_for_a_slot(tmp_path: Path) -> None:
    gate = Gate()
    store = job_store(tmp_path / "store", max_use_percent=100)
    async with engine(gate) as gpu, serving(tmp_path, gpu, slots=1, queue=0, job_store=store) as (agent, client):
        await client.started(input_file(2))
        await until(lambda: len(gate.running) == 1)
        chat = await RawClient.connect(agent.traffic)
        chat.send(post(BODY))
        await until(lambda: agent.queue.queues.waiting(MODEL) == 1)
        assert not gate.aborted
        gate.open.set()
        assert (await chat.answer()).status == 200
        chat.close()


@pytest.mark.parametrize("chats", [1, 3])
async def test_chats_at_one_agent_take_the_slots_of_a_batch_at_another(
    tmp_path: Path, own_redis: RedisServer, chats: int
) -> None:
    gate = Gate()
    store = job_store(tmp_path / "store", max_use_percent=100)
    common = {"slots": 3, "queue": 0, "redis_url": own_redis.url}
    async with (
        engine(gate) as gpu,
        running_agent(tmp_path / "a", [gpu.address], name="agent-1", job_store=store, **common) as one,
        running_agent(tmp_path / "b", [gpu.address], name="agent-2", **common) as two,
        JobClient(one.traffic) as client,
    ):
        for agent in (one, two):
            preempts(agent)
        batch = await client.started(input_file(REQUESTS))
        await until(lambda: len(gate.running) == 3)
        await until(lambda: two.endpoints.pools[MODEL].in_flight == 3)
        found = await asyncio.gather(*(ask(two) for _ in range(chats)))
        assert [status for status, _, _ in found] == [200] * chats
        assert 1 <= len(gate.aborted) <= chats
        gate.open.set()
        assert (await client.ended(batch))["request_counts"]["completed"] == REQUESTS
        assert len(gate.starts) == REQUESTS + len(gate.aborted)


async def test_a_request_that_is_preempted_in_another_region_returns_and_runs_at_home(tmp_path: Path) -> None:
    home, away = Gate(), Gate()
    store = job_store(tmp_path / "store", max_use_percent=100)
    async with (
        engine(home) as near,
        engine(away) as far,
        running_agent(tmp_path / "far", [far.address], region="us-east", slots=1, queue=0) as server,
        serving(tmp_path, near, slots=1, queue=0, job_store=store, peers={"us-east": server.peer}) as (agent, client),
    ):
        for each in (agent, server):
            preempts(each)
        batch = await client.started(input_file(1) + request_line("other", "text other"))
        await until(lambda: len(home.running) == 1 and agent.queue.queues.batch_waiting_here(MODEL) == 1)
        waiting = {"0", "other"} - home.running
        agent.peers.batch_credits["us-east"] = 1
        agent.queue.credit_arrived()
        await until(lambda: away.running == waiting)
        assert (await ask(server))[0] == 200
        await until(lambda: set(away.aborted) == waiting)
        assert (preempted(server), preempted(agent)) == (1, 0)
        assert server.counted() == {"deferred": 1, "ok": 1}
        await until(lambda: agent.queue.queues.batch_waiting_here(MODEL) == 1)
        home.open.set()
        assert (await client.ended(batch))["request_counts"]["completed"] == 2
        assert sorted(home.starts) == ["0", "other"]
