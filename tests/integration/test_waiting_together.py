"""Agents of one region whose queued requests wait for the same engine, in turn, through a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from math import inf
from pathlib import Path

import pytest
from msgspec.structs import replace

from adapters.servers.redis import RedisServer
from penstock.fleet import shared_counts
from regional_agent.background_tasks import cancel
from regional_agent.routing import queue_dispatcher
from regional_agent.shared_load import other_agents, shared_load_exchange
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until

PATIENT_S = 30.0

APART_S = 1.0
"""Time (s) between two queued requests. At most half of it may be the error of the ages that other agents report."""


def keep_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the lease, so that counts do not expire while a busy machine delays this process."""
    for module in (shared_counts, other_agents, shared_load_exchange):
        monkeypatch.setattr(module, "LEASE_S", PATIENT_S)


class Gpu:
    """An engine with one slot that runs each request until a test releases it."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.go_on = asyncio.Semaphore(0)

    async def script(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        self.began.append(received.header("x-request-id") or "")
        await self.go_on.acquire()
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"choices": [], "data": []}')


class Region:
    """Agents a, b and c in front of one such engine."""

    def __init__(self, gpu: Gpu, agents: dict[str, Agent]) -> None:
        self.gpu = gpu
        self.agents = agents
        self.asked: dict[str, RawClient] = {}

    async def ask(self, name: str, request: str) -> None:
        """Send a request to an agent."""
        client = self.asked[request] = await RawClient.connect(self.agents[name].traffic)
        client.send(post(BODY, f"X-Request-Id: {request}"))

    async def fill(self, name: str, request: str) -> None:
        """Send the request that the engine runs first; returns once every agent counts it."""
        await self.ask(name, request)
        await until(lambda: self.gpu.began == [request])
        pools = [agent.endpoints.pools[MODEL] for agent in self.agents.values()]
        await until(lambda: all(pool.in_flight == 1 for pool in pools))

    async def wait(self, name: str, request: str) -> None:
        """Send a request that has to wait; returns once every agent counts it."""
        before = self.agents[name].waiting()
        await self.ask(name, request)
        await until(lambda: self.agents[name].waiting() == before + 1)
        await self.all_agents_agree()

    def first_in_line(self, name: str) -> None:
        """Give the next requests at one agent precedence over those at others."""
        config = self.agents[name].config
        tenants = {name: replace(tenant, priority=1) for name, tenant in config.policy.tenants.items()}
        config.policy = replace(config.policy, tenants=tenants)

    async def all_agents_agree(self) -> None:
        """Return once every agent has the total number of waiting requests."""
        total = sum(agent.waiting() for agent in self.agents.values())
        await until(lambda: all(agent.queue.queues.waiting(MODEL) == total for agent in self.agents.values()))

    async def all_ages_are_current(self) -> None:
        """Return once every agent has the ages of the other agents' first requests, within half of APART_S."""
        await until(self._ages_are_current)

    def _ages_are_current(self) -> bool:
        heads = {name: agent.queue.queues.of(MODEL).head() for name, agent in self.agents.items()}
        for name, agent in self.agents.items():
            received = {head.which: head.since for head in agent.queue.queues.other_heads(MODEL)}
            for other, head in heads.items():
                if other == name or head is None:
                    continue
                if abs(received.get(head.which, inf) - head.since) > APART_S / 2:
                    return False
        return True

    async def answered(self, request: str) -> int:
        """The status of the response to a request."""
        answer = await self.asked[request].answer()
        self.asked.pop(request).close()
        return answer.status


@pytest.fixture
async def region(tmp_path: Path, own_redis: RedisServer) -> AsyncIterator[Region]:
    gpu = Gpu()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(engine(gpu.script))
        agents = {
            name: await stack.enter_async_context(
                running_agent(tmp_path / name, [server.address], slots=1, queue=0, name=name, redis_url=own_redis.url)
            )
            for name in ("a", "b", "c")
        }
        for agent in agents.values():
            pool = agent.endpoints.pools[MODEL]
            pool.prior_s = 0.1  # a short service time, so that a queue of a few requests stays within the limit
            pool.recount()
        waiting_region = Region(gpu, agents)
        yield waiting_region
        for client in waiting_region.asked.values():
            client.close()
        await until(lambda: all(agent.held() == agent.waiting() == 0 for agent in agents.values()))


async def test_agents_take_turns_by_who_has_waited_longest(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_dispatcher, "YIELD_S", PATIENT_S)
    keep_counts(monkeypatch)
    await region.fill("a", "a0")
    expected = ["a1", "b1", "a2", "c1", "b2", "a3"]
    for request in expected:
        await region.wait(request[0], request)
        await asyncio.sleep(APART_S)
    for number, request in enumerate(["a0", *expected[:-1]]):
        # A first report that a busy machine delays makes a request appear younger than it is.
        await region.all_ages_are_current()
        region.gpu.go_on.release()
        assert await region.answered(request) == 200
        await until(lambda number=number: len(region.gpu.began) == number + 2)
        await region.all_agents_agree()
    assert region.gpu.began == ["a0", *expected]
    region.gpu.go_on.release()
    assert await region.answered(expected[-1]) == 200


async def test_a_new_request_does_not_overtake_a_queued_one_at_another_agent(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_dispatcher, "YIELD_S", PATIENT_S)
    keep_counts(monkeypatch)
    await region.fill("a", "a0")
    await region.wait("b", "b1")
    region.agents["a"].endpoints.pools[MODEL].views[0].limit = 9  # a free slot that only `a` counts
    region.agents["a"].endpoints.pools[MODEL].views[0].update_score()
    await region.wait("a", "a1")
    assert region.gpu.began == ["a0"]
    region.asked["b1"].close()
    await until(lambda: region.gpu.began == ["a0", "a1"])
    for request in ("a0", "a1"):
        region.gpu.go_on.release()
        assert await region.answered(request) == 200


async def test_a_failed_agent_delays_no_other(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_counts(monkeypatch)
    for name in ("b", "c"):
        region.first_in_line(name)
    await region.fill("a", "a0")
    for request in ("b1", "c1", "a1"):
        await region.wait(request[0], request)
    for name in ("b", "c"):
        exchange = region.agents[name].exchange
        assert exchange is not None
        await cancel(exchange._tasks)  # as if killed: its published queue remains until its lease expires
        exchange._tasks = []
        region.agents[name].queue.close()
    region.gpu.go_on.release()
    await until(lambda: region.gpu.began == ["a0", "a1"])
    assert region.agents["b"].waiting() == region.agents["c"].waiting() == 1
    region.gpu.go_on.release()
    assert [await region.answered(request) for request in ("a0", "a1")] == [200, 200]


async def test_without_redis_each_agent_serves_its_own(region: Region, own_redis: RedisServer) -> None:
    await region.fill("a", "a0")
    for request in ("b1", "a1", "c1"):
        await region.wait(request[0], request)
    own_redis.kill()
    for _ in range(4):
        region.gpu.go_on.release()
    assert [await region.answered(request) for request in ("a0", "a1", "b1", "c1")] == [200] * 4
