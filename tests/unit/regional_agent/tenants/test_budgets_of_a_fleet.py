"""Agents with their real meters and a leader, on a virtual clock: what a tenant can use of a budget of the fleet."""

from __future__ import annotations

from collections import deque
from itertools import count
from random import Random
from typing import Any

import pytest

from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.policy.kinds.billing import ModelPrice, Prices
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.kinds.models import Cost, CostUnit, Model
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.pools.placement import WorkEstimate
from penstock.tenancy.amounts import Amounts
from penstock.tenancy.budget_lease import BudgetKey
from penstock.tenancy.budget_reservations import BudgetReservation, SenderBudgets
from regional_agent.tenants.tenant_budgets import TenantBudgets
from tests.support.budget_fleet import BudgetFleet

PLACES = BudgetKey("team", "", BudgetUnit.CONCURRENT_REQUESTS, "")
REGIONS = {"eu": ["a", "b", "c", "d"], "us": ["e", "f", "g"], "ap": ["h", "i", "j"]}
COST = Cost(CostUnit.TOKEN, 0.001, 0.01)
PRICES = Prices("p", 0.0, "EUR", (ModelPrice("m", per_million_output_tokens=1e6),))
POLICY = Policy({}, {"m": Model("m", cost=COST)}, {}, (), prices=(PRICES,))
"""An output token costs 1."""


class Fleet:
    """A fleet in which one tenant has one budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.fleet = BudgetFleet({BudgetKey("team", "", budget.unit, ""): budget}, REGIONS)
        tenant = Tenant("team", "open", own_budgets=(budget,))
        self.budgets: dict[str, TenantBudgets] = {}
        self.senders: dict[str, SenderBudgets] = {}
        for name, agent in self.fleet.agents.items():
            budgets = TenantBudgets(agent.region, 1, agent.leases, self._agents_in, lambda: self.fleet.wall)
            exchanged: Any = agent
            exchanged._all = self.budgets[name] = budgets
            sender = budgets.of(tenant)
            assert sender is not None
            self.senders[name] = sender
        self.names = list(self.budgets)
        for _ in range(5):
            self.fleet.advance()
        self.start = self.fleet.now
        self.running: deque[tuple[float, BudgetReservation, float]] = deque()
        self.used = 0.0

    def _agents_in(self, region: str) -> int:
        return len(REGIONS[region]) if region else 10

    def spend(self, cost: float) -> tuple[int, int]:
        """Send requests of a cost to one agent, each up to ten times at intervals of half a second, until one is
        refused each time; the number of those that were served, and the largest number of refusals of one."""
        served = most = refusals = 0
        while refusals < 10:
            if self.ask("eu/a", cost, cost):
                served, most, refusals = served + 1, max(most, refusals), 0
                self.settle()
            else:
                refusals += 1
                self.fleet.run(0.5, lambda now: None)
        return served, most

    def ask(self, name: str, tokens: float = 0.0, actual: float = 1.0, holds_s: float = 0.0) -> bool:
        """Send a request whose estimate is `tokens`, and which uses `actual` of the budget; whether it is admitted."""
        now = self.fleet.now
        work = WorkEstimate("team", "m", COST, CostInputs(0), Work(0.0, tokens * 0.01), False)
        reserved = self.budgets[name].reserve(self.senders[name], POLICY, work, now)
        if not isinstance(reserved, BudgetReservation):
            return False
        self.used += actual
        self.running.append((now + holds_s, reserved, actual))
        return True

    def settle(self) -> None:
        """Settle the requests that have ended."""
        for _ in range(len(self.running)):
            ends_at, reserved, actual = self.running.popleft()
            if ends_at > self.fleet.now:
                self.running.append((ends_at, reserved, actual))
                continue
            amounts = Amounts()
            amounts.output_tokens = amounts.money = actual
            reserved.settle(amounts, self.fleet.now)

    @property
    def allowed(self) -> float:
        """What the budget has permitted since the start."""
        return self.budget.largest_burst + (self.fleet.now - self.start) * self.budget.per_s


def test_moving_demand_uses_the_budget_and_no_more() -> None:
    of, rng, worst = Fleet(Budget(BudgetUnit.REQUESTS, 600.0)), Random(7), 0.0
    weights = [1.0] * 10

    def offer(now: float) -> None:
        nonlocal weights, worst
        if int(now * 10) % 70 == 0:
            weights = [rng.choice((0.0, 0.05, 0.2, 5.0)) for _ in of.names]
            weights[rng.randrange(10)] = 5.0
        for name in rng.choices(of.names, weights, k=3):
            of.ask(name)
        of.settle()
        worst = max(worst, of.used / of.allowed - 1.0)

    of.fleet.run(60.0, offer)
    assert worst <= 0.05
    assert of.used >= 0.95 * of.allowed


def test_tokens_that_differ_from_their_estimate_stay_within_the_budget() -> None:
    of, rng, worst = Fleet(Budget(BudgetUnit.TOKENS, 120_000.0)), Random(3), 0.0

    def offer(now: float) -> None:
        nonlocal worst
        for name in rng.choices(of.names, [8.0, 4.0, 1.0, 1.0, 0, 0, 0, 0, 0, 0], k=4):
            estimate = rng.choice((100.0, 400.0, 1000.0))
            of.ask(name, estimate, estimate * rng.choice((0.2, 1.0, 2.0)), rng.choice((0.2, 1.0, 4.0)))
        of.settle()
        worst = max(worst, of.used / of.allowed - 1.0)

    of.fleet.run(90.0, offer)
    assert worst <= 0.05
    assert of.used >= 0.9 * of.allowed


def test_a_tenant_on_one_connection_has_the_whole_budget() -> None:
    of = Fleet(Budget(BudgetUnit.REQUESTS, 600.0))

    def offer(now: float) -> None:
        for _ in range(5):
            of.ask("eu/a")
        of.settle()

    of.fleet.run(30.0, offer)
    before = of.used
    of.fleet.run(60.0, offer)
    assert of.used - before >= 0.95 * 600
    assert of.used <= of.allowed + 1


def test_places_move_to_the_agent_that_wants_them() -> None:
    of = Fleet(Budget(BudgetUnit.CONCURRENT_REQUESTS, 20.0))
    most = 0
    for name in ("eu/a", "us/e"):
        running: deque[int] = deque(maxlen=10)

        def offer(now: float, name: str = name, running: deque[int] = running) -> None:
            nonlocal most
            for _ in range(5):
                of.ask(name, holds_s=0.5)
            of.settle()
            running.append(len(of.running))
            most = max(most, running[-1])

        of.fleet.run(10.0, offer)
        assert max(running) >= 18
    assert most <= 20


def test_places_that_agents_may_take_without_a_leader_are_within_the_budget() -> None:
    of, rng, worst = Fleet(Budget(BudgetUnit.CONCURRENT_REQUESTS, 20.0)), Random(5), 0.0
    wanting: list[str] = []

    def offer(now: float) -> None:
        nonlocal wanting, worst
        if int(now * 10) % 40 == 0:
            wanting = rng.sample(of.names, 2)
        for name in wanting:
            for _ in range(4):
                of.ask(name, holds_s=rng.choice((0.2, 0.5, 2.0)))
        of.settle()
        meters = [meter for budgets in of.budgets.values() for meter in budgets._meters.values()]
        worst = max(worst, sum(max(meter.used, meter.rate_per_s) for meter in meters))

    of.fleet.run(60.0, offer)
    assert worst <= 20.0


def test_a_new_leader_grants_nothing_until_agents_have_reported_all_that_they_hold() -> None:
    fleet = BudgetFleet({PLACES: Budget(BudgetUnit.CONCURRENT_REQUESTS, 12.0)}, {"eu": ["a", "b"]})
    fleet.run(1.0, lambda now: None)
    a, b = fleet.agents["eu/a"], fleet.agents["eu/b"]
    budget = fleet.budgets[PLACES]

    while a.meters.get(PLACES) is None or a.meters[PLACES].used < 7.0:
        a.take(PLACES, budget, fleet.now)
        fleet.advance()
    fleet.run(20.0, lambda now: None)
    # The counter of `a` is no news to the first leader: the first request to the second one is without it.
    fleet.elect(2)
    request = a.request(fleet.now)
    assert request.uses == ()
    fleet.ask(request)
    for _ in range(20):
        b.take(PLACES, budget, fleet.now)
        fleet.exchange("eu/b")
    assert 7.0 + b.meters[PLACES].used <= 12.0


@pytest.mark.parametrize(("limit", "cost"), [(0.0101, 0.0004), (0.01, 0.003), (5.0, 0.02), (5.0, 0.3), (5.0, 1.5)])
def test_what_is_left_of_money_is_granted_to_a_request_that_needs_it(limit: float, cost: float) -> None:
    assert Fleet(Budget(BudgetUnit.MONEY_PER_DAY, limit)).spend(cost) == (int(limit / cost), 1)


@pytest.mark.parametrize(("limit", "cost"), [(3.0, 0.15), (1.0, 0.1), (0.3, 0.1), (7.0, 0.07)])
def test_all_of_the_money_is_used_by_requests_of_one_price_at_several_agents(limit: float, cost: float) -> None:
    """Neither sums of fractions nor rounded leases leave a little less than the last one needs."""
    of, served = Fleet(Budget(BudgetUnit.MONEY_PER_DAY, limit)), 0
    for turn in range(600):
        served += of.ask(("eu/a", "us/e")[turn % 2], cost, cost)
        of.settle()
        of.fleet.run(0.5, lambda now: None)
    assert served == round(limit / cost)


def test_a_larger_request_than_the_usual_one_has_what_is_left_of_money() -> None:
    of = Fleet(Budget(BudgetUnit.MONEY_PER_DAY, 1.0))
    while of.used < 0.4:
        of.ask("eu/a", 0.01, 0.01)
        of.settle()
        of.fleet.run(0.5, lambda now: None)
    assert of.spend(0.5) == (1, 1)


def test_requests_far_above_their_budget_are_repaid_before_the_next_one() -> None:
    of, refused = Fleet(Budget(BudgetUnit.TOKENS, 2_000.0)), []

    def offer(now: float) -> None:
        if not of.ask("eu/a", 15_000.0, 15_000.0) and of.used == 15_000.0:
            (meter,) = of.senders["eu/a"].meters
            refused.append(now + meter.retry_after_s(15_000.0, now, of.fleet.wall))
        of.settle()

    of.fleet.run(1_800.0, offer, 0.5)
    assert 0.75 * of.allowed <= of.used <= of.allowed + 15_000.0
    # Half of the burst suffices, after 14,000 tokens of debt, whenever the client asks.
    assert of.start + 420.0 <= min(refused[1:]) <= max(refused) <= of.start + 425.0


def test_an_estimate_far_above_its_budget_gives_nothing_back_that_was_never_charged() -> None:
    of = Fleet(Budget(BudgetUnit.TOKENS, 50_000.0, burst=5_000.0))

    def offer(now: float) -> None:
        of.ask("eu/a", 140_000.0, 35_000.0, holds_s=2.0)
        of.settle()

    of.fleet.run(600.0, offer)
    assert 0.8 * of.allowed <= of.used <= of.allowed + 35_000.0


def test_a_budget_of_one_request_is_used_wherever_requests_arrive() -> None:
    of, rng, steps = Fleet(Budget(BudgetUnit.REQUESTS, 1.0)), Random(1), count()
    name = of.names[0]

    def offer(now: float) -> None:
        nonlocal name
        step = next(steps)
        if step % 50 == 0:
            name = rng.choice(of.names[:4])
        if step % 10 == 0:
            of.ask(name)
        of.settle()

    of.fleet.run(600.0, offer)
    assert of.used >= 9.0
