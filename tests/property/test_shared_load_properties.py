"""Several agents of one region against a real Redis that is flushed and restarted under them."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from adapters.servers.redis import RedisServer
from penstock.fleet import shared_counts
from penstock.pools.placement import Reservation
from penstock.pools.pool_accounting import NO_LOAD, Load
from regional_agent.background_tasks import cancel
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.shared_load import other_agents, shared_load_exchange
from regional_agent.shared_load.redis_script import RedisAddress, RegionRedis
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.shared_load.shared_load_exchange import SharedLoadExchange
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.examples import examples
from tests.support.redis_server import start_redis
from tests.support.reservations import end_prefill, release, reserve
from tests.support.shared_loads import has_no_load, published_loads, region_keys
from tests.support.wait import PATIENCE_S

AGENTS = ("a", "b", "c")
NAMES = ("gpu-0", "gpu-1")
SHORT_LEASE_S = 0.8


class Agent:
    def __init__(self, view: SharedLoad, exchange: SharedLoadExchange, endpoints: list[Endpoint]) -> None:
        self.view = view
        self.exchange = exchange
        self.endpoints = endpoints
        self.held: list[Reservation] = []

    def own(self) -> dict[str, Load]:
        loads = dict.fromkeys(NAMES, NO_LOAD)
        for reservation in self.held:
            loads[reservation.endpoint.name] = added(
                loads[reservation.endpoint.name], Load(1, reservation.prefill_us, reservation.decode_us)
            )
        return loads


class Region(RuleBasedStateMachine):
    server: RedisServer
    directory: Path

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.region = f"region-{os.urandom(6).hex()}"
        self.epoch = 0
        self.changed_at = 0.0
        self.agents: dict[str, Agent] = {}
        self.run(self.start("a"))

    def run(self, what: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(what)

    async def start(self, name: str) -> None:
        self.epoch += 1
        file = self.directory / "endpoints.yaml"
        endpoints = EndpointSet(EndpointSettings(file), UpstreamPool(), Random(1))
        view = SharedLoad(endpoints, shared=True)
        exchange = SharedLoadExchange(
            view,
            dict,
            lambda: None,
            RegionRedis(RedisAddress(self.server.url), region_keys(self.region), self.region),
            AgentInstance(self.region, name, self.epoch),
            Random(self.epoch),
        )
        exchange.start()
        self.agents[name] = Agent(view, exchange, list(endpoints.every()))

    def some_agent(self, number: int) -> str:
        return sorted(self.agents)[number % len(self.agents)]

    @precondition(lambda self: len(self.agents) < len(AGENTS))
    @rule()
    def begin(self) -> None:
        self.run(self.start(next(name for name in AGENTS if name not in self.agents)))

    @precondition(lambda self: self.agents)
    @rule(
        requests=st.lists(
            st.tuples(
                st.integers(0, 2), st.integers(0, 9), st.sampled_from(["begin", "first byte", "end", "end twice"])
            ),
            min_size=1,
            max_size=12,
        )
    )
    def requests_come_and_go(self, requests: list[tuple[int, int, str]]) -> None:
        for number, which, what in requests:
            agent = self.agents[self.some_agent(number)]
            if what == "begin" or not agent.held:
                work = (which * 1000, which * 77_000)
                agent.held.append(reserve(agent.view, Reservation(agent.endpoints[which % len(NAMES)], *work)))
                continue
            if what == "first byte":
                end_prefill(agent.view, agent.held[which % len(agent.held)])
                continue
            reservation = agent.held.pop(which % len(agent.held))
            release(agent.view, reservation)
            if what == "end twice":
                release(agent.view, reservation)
                end_prefill(agent.view, reservation)

    @rule(pause_s=st.floats(0.0, 0.05))
    def go_on(self, pause_s: float) -> None:
        self.run(asyncio.sleep(pause_s))

    @precondition(lambda self: self.agents)
    @rule(number=st.integers(0, 2))
    def kill(self, number: int) -> None:
        exchange = self.agents.pop(self.some_agent(number)).exchange
        self.run(cancel(exchange._tasks))
        self.run(exchange._redis.aclose())  # as the kernel closes a dead process's sockets, without a message

    @precondition(lambda self: self.agents)
    @rule(number=st.integers(0, 2))
    def stop(self, number: int) -> None:
        self.run(self.agents.pop(self.some_agent(number)).exchange.stop())

    @rule()
    def flush_redis(self) -> None:
        redis.Redis.from_url(self.server.url).flushall()

    @rule()
    def restart_redis(self) -> None:
        self.server.kill()
        self.run(asyncio.sleep(0.02))
        self.server.restart()

    @invariant()
    def nothing_is_negative_and_own_requests_always_count(self) -> None:
        for agent in self.agents.values():
            own, counted = agent.own(), seen(agent)
            for name in NAMES:
                for all_agents, this_one in zip(counted[name], own[name], strict=True):
                    assert all_agents >= this_one >= 0

    def all_see(self, loads: dict[str, Load]) -> bool:
        """Whether every agent has read these loads, at least two exchanges after the last request began or ended."""
        return all(
            seen(agent) == loads and agent.view.read_at > self.changed_at + 2 * shared_counts.IDLE_INTERVAL_S
            for agent in self.agents.values()
        )

    def teardown(self) -> None:
        self.changed_at = time.monotonic()
        total = dict.fromkeys(NAMES, NO_LOAD)
        for agent in self.agents.values():
            total = {name: added(load, agent.own()[name]) for name, load in total.items()}
        self.run(until(lambda: self.all_see(total), "agree on what is held"))
        for agent in self.agents.values():
            for reservation in agent.held:
                release(agent.view, reservation)
            agent.held = []
        self.changed_at = time.monotonic()
        self.run(until(lambda: self.all_see(dict.fromkeys(NAMES, NO_LOAD)), "return to zero"))
        client = redis.Redis.from_url(self.server.url)
        self.run(
            until(
                lambda: (
                    [has_no_load(load) for load in published_loads(client, self.region)] == [True] * len(self.agents)
                ),
                "become zero in Redis",
            )
        )
        for agent in self.agents.values():
            self.run(agent.exchange.stop())
        self.run(until(lambda: published_loads(client, self.region) == [], "leave nothing in Redis"))
        self.loop.close()


def seen(agent: Agent) -> dict[str, Load]:
    views = [endpoint.view for endpoint in agent.endpoints]
    return {view.name: Load(view.in_flight, view.prefill_us, view.decode_us) for view in views}


def added(load: Load, more: Load) -> Load:
    return Load(*(a + b for a, b in zip(load, more, strict=True)))


async def until(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 (there is no event)
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"the view did not {what}") from None


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (shared_counts, other_agents, shared_load_exchange):
        monkeypatch.setattr(module, "LEASE_S", SHORT_LEASE_S)
    monkeypatch.setattr(shared_load_exchange, "BACKOFF_CAP_S", 0.2)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory() as directory, start_redis(Path(directory)) as server:
        yield server


def test_every_counter_returns_to_zero(short_leases: None, server: RedisServer, tmp_path: Path) -> None:
    lines = [
        f"- {{name: {name}, url: 'http://127.0.0.1:{n + 1}', models: [m], slots: 4, queue: 1000}}\n"
        for n, name in enumerate(NAMES)
    ]
    (tmp_path / "endpoints.yaml").write_text("".join(lines))
    Region.server, Region.directory = server, tmp_path
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Region,
        settings=settings(
            max_examples=examples(20),
            phases=[Phase.generate],
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
