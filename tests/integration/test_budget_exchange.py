"""Exchanges of budgets between agents and the leader, over sockets."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Put
from adapters.store.members import Member
from control_plane.tenants import money_checkpoint
from control_plane.tenants.budget_leader import BudgetLeader, ExchangeRefused
from control_plane.tenants.budget_metrics import BudgetMetrics
from control_plane.tenants.money_checkpoint import MoneyCheckpoint
from lab.memory_store import MemoryStore
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.tenancy import divided_budget
from penstock.tenancy.agent_leases import LeaseHolder
from penstock.tenancy.budget_lease import BudgetKey
from penstock.wire import identity
from penstock.wire.identity import encode_certificate
from penstock.wire.peer_keys import Keyring, Purpose
from penstock.wire.signed_report import authenticate_head
from regional_agent.tenants import budget_exchange
from regional_agent.tenants.budget_exchange import BudgetExchange
from regional_agent.upstream.leader_link import ControlPlanes, LeaderLink, NotDelivered
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.budget_fleet import Meters
from tests.support.identities import agent_keyring, control_plane_keyring
from tests.support.small_http import Headers, SmallHttp
from tests.support.wait import until

REQUESTS = BudgetKey("team", "", BudgetUnit.REQUESTS, "")
MONEY = BudgetKey("team", "", BudgetUnit.MONEY_PER_DAY, "")
PLACES = BudgetKey("team", "", BudgetUnit.CONCURRENT_REQUESTS, "")
BUDGETS = {
    REQUESTS: Budget(BudgetUnit.REQUESTS, 10.0),
    MONEY: Budget(BudgetUnit.MONEY_PER_DAY, 100.0),
    PLACES: Budget(BudgetUnit.CONCURRENT_REQUESTS, 1.0),
}


class Leader(SmallHttp):
    """A control plane that answers exchanges by the leader's part, over HTTP."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(self._take)
        self.keyring: Keyring = control_plane_keyring()
        self.epoch: int | None = None
        self.agents = {"eu/a": "eu", "eu/b": "eu"}
        self.forges = False
        metrics = BudgetMetrics(CollectorRegistry())
        self.part = BudgetLeader(
            lambda: self.epoch, lambda: self.agents, lambda key, tier: BUDGETS.get(key), MoneyCheckpoint(store), metrics
        )

    async def lead(self, store: MemoryStore) -> None:
        """Win the election."""
        done = await store.commit((), (Put(keys.LEADER, encode(Member("cp", self.url))),))
        item = await store.get(keys.LEADER)
        assert done.succeeded
        assert item is not None
        self.epoch = item.mod_revision
        await self.part.tick()

    async def _take(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        if target == identity.PATH.encode():
            return 200, encode_certificate(self.keyring.identity.peer.certificate).encode()
        sent = {name.decode(): value.decode() for name, value in headers}
        head = authenticate_head(self.keyring, sent, time.time(), Purpose.BUDGET_USES)
        try:
            answer = await self.part.exchange(head, body)
        except ExchangeRefused as refused:
            return refused.status, str(refused).encode()
        return 200, answer[:-1] + bytes([answer[-1] ^ 1]) if self.forges else answer


class Agent:
    def __init__(self, store: MemoryStore, name: str) -> None:
        self.connections = UpstreamPool()
        self.link = LeaderLink(store, ControlPlanes(()), self.connections, agent_keyring("eu", name), Random(1))
        self.exchange = BudgetExchange(self.link, LeaseHolder(name, "eu", 1), lambda _: 2)
        self.leases = self.exchange.leases
        self.meters = Meters(self.leases, 1)

    def start(self) -> None:
        self.link.start()
        self.exchange.start(self.meters)

    async def stop(self) -> None:
        await self.exchange.stop()
        await self.link.stop()
        self.connections.close()

    def take(self, key: BudgetKey, amount: float = 1.0) -> bool:
        return self.meters.take(key, BUDGETS[key], time.monotonic(), amount)

    @property
    def may_open(self) -> bool:
        return self.leases._may_open


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_exchange, "INTERVAL_S", 0.1)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    made = MemoryStore()
    yield made
    await made.close()


@pytest.fixture
async def leader(store: MemoryStore) -> AsyncIterator[Leader]:
    made = Leader(store)
    await made.start()
    await made.lead(store)
    yield made
    await made.stop()


@pytest.fixture
async def agents(store: MemoryStore, leader: Leader) -> AsyncIterator[list[Agent]]:
    made = [Agent(store, name) for name in ("a", "b")]
    for agent in made:
        agent.start()
    yield made
    for agent in made:
        await agent.stop()


async def test_a_burst_at_one_of_two_agents_admits_the_budget(agents: list[Agent], leader: Leader) -> None:
    a, b = agents
    await until(lambda: a.may_open and b.may_open)
    began = time.monotonic()
    first = sum(a.take(REQUESTS) for _ in range(1000))
    assert first == 5
    admitted = first

    def all_admitted() -> bool:
        nonlocal admitted
        admitted += sum(a.take(REQUESTS) for _ in range(100))
        return admitted >= 10

    await until(all_admitted)
    # What the rate adds meanwhile is not part of the burst.
    assert admitted <= 10 + (time.monotonic() - began) / 6 + 1
    assert not b.take(REQUESTS)


async def test_a_free_place_is_where_a_request_waits(
    agents: list[Agent], leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No agent gives a place back for want of requests.
    monkeypatch.setattr(divided_budget, "IDLE_S", 1e9)
    await until(lambda: all(agent.may_open for agent in agents))
    for agent in (*agents, *agents):
        await until(lambda agent=agent: agent.take(PLACES))
        assert sum(each.meters.of[PLACES].used for each in agents if PLACES in each.meters.of) == 1.0
        agent.meters.of[PLACES].end()


async def test_a_request_that_is_replaced_ends_and_keeps_its_connection(agents: list[Agent], leader: Leader) -> None:
    a, b = agents
    await until(lambda: a.may_open and b.may_open)
    await until(lambda: "eu/a" in leader.part._waiting)
    a.exchange.wake()
    await until(lambda: a.exchange._left is not None)
    left = a.exchange._left
    assert left is not None
    await until(left.done)
    assert isinstance(left.exception(), NotDelivered), "refused as an old one, not cancelled"


async def test_a_forged_answer_grants_nothing(agents: list[Agent], leader: Leader) -> None:
    leader.forges = True
    a, _ = agents
    asked = leader.requests
    await until(lambda: leader.requests > asked + 4)
    assert a.leases._answered == 0
    leader.forges = False
    await until(lambda: a.may_open)


async def test_totals_of_money_survive_the_leader_and_the_agents(
    store: MemoryStore, agents: list[Agent], leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(money_checkpoint, "SAVE_S", 0.0)
    a, b = agents
    await until(lambda: a.may_open and b.may_open)
    spent = 0.0

    def has_spent() -> bool:
        nonlocal spent
        spent += sum(a.take(MONEY) for _ in range(3))
        return spent >= 50

    await until(has_spent)
    fleet = leader.part.fleet
    assert fleet is not None
    await until(lambda: MONEY in fleet.totals() and fleet.totals()[MONEY].spent >= 45)
    for agent in agents:
        await agent.stop()
    await leader.part.tick()
    # Another leader, to which no agent reports.
    await leader.lead(store)
    assert leader.part.fleet is not None
    assert leader.part.fleet is not fleet
    assert leader.part.fleet.totals()[MONEY].spent >= 45


async def test_a_leader_that_resigns_ends_delayed_requests(agents: list[Agent], leader: Leader) -> None:
    a, b = agents
    await until(lambda: a.may_open and b.may_open)
    await until(lambda: len(leader.part._waiting) == 2)
    delayed = list(leader.part._waiting.values())
    leader.epoch = None
    leader.part.close()
    assert all(request.is_set() for request in delayed)


async def test_only_the_leader_answers(agents: list[Agent], leader: Leader) -> None:
    a, _ = agents
    await until(lambda: a.may_open)
    leader.epoch = None
    await leader.part.tick()
    asked = leader.requests
    await until(lambda: leader.requests > asked + 1)
    assert leader.part.fleet is None
