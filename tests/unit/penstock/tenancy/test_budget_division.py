"""Division of budgets over a fleet, on a virtual clock: overshoot, use, small budgets, losses."""

from __future__ import annotations

from itertools import cycle
from math import inf
from random import Random
from statistics import mean

import pytest

from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit
from penstock.tenancy.budget_lease import BudgetKey, BudgetUse
from penstock.tenancy.divided_budget import DividedBudget
from penstock.tenancy.fleet_budgets import FleetBudgets
from penstock.wire.budget_exchange import MAX_CHANGES, ExchangeRequest
from tests.support.budget_fleet import Agent, BudgetFleet

REGIONS = {"eu": ["a", "b", "c", "d"], "us": ["e", "f", "g"], "ap": ["h", "i", "j"]}
AGENTS = [f"{region}/{name}" for region, names in REGIONS.items() for name in names]


def key_of(unit: BudgetUnit, region: str = "") -> BudgetKey:
    return BudgetKey("team", "", unit, region)


REQUESTS = key_of(BudgetUnit.REQUESTS)


def fleet_with(budget: Budget, region: str = "") -> BudgetFleet:
    fleet = BudgetFleet({key_of(budget.unit, region): budget}, REGIONS)
    for _ in range(5):
        fleet.advance()
    return fleet


@pytest.mark.parametrize("per_minute", [600.0, 6_000.0])
def test_moving_demand_uses_the_whole_budget_and_no_more(per_minute: float) -> None:
    budget = Budget(BudgetUnit.REQUESTS, per_minute)
    fleet = fleet_with(budget)
    rng = Random(7)
    admitted = 0
    worst = 0.0
    weights = [1.0] * len(AGENTS)

    def offer(now: float) -> None:
        nonlocal admitted, weights, worst
        if int(now * 10) % 70 == 0:
            # Demand moves each 7 s; most of it reaches one or two agents.
            weights = [rng.choice((0.0, 0.05, 0.2, 5.0)) for _ in AGENTS]
            weights[rng.randrange(len(AGENTS))] = 5.0
        for name in rng.choices(AGENTS, weights, k=int(per_minute / 600.0 * 3)):
            admitted += fleet.agents[name].take(REQUESTS, budget, now)
        allowed = budget.limit + (now - start) * budget.per_s
        worst = max(worst, admitted / allowed - 1.0)

    start = fleet.now
    fleet.run(180.0, offer)
    allowed = budget.limit + (fleet.now - start) * budget.per_s
    print(per_minute, "overshoot", worst, "use", admitted / allowed)
    assert worst <= 0.05
    assert admitted >= 0.95 * allowed


@pytest.mark.parametrize("moves_s", [0.5, 1.0, 3.0])
def test_demand_that_moves_within_one_region_uses_the_budget_and_rates_never_exceed_it(moves_s: float) -> None:
    budget = Budget(BudgetUnit.REQUESTS, 600.0)
    fleet = fleet_with(budget)
    rng, here = Random(7), AGENTS[:4]
    admitted, at, target = 0, fleet.now, here[0]
    rates = []

    def offer(now: float) -> None:
        nonlocal admitted, at, target
        if now - at >= moves_s - 1e-9:
            at, target = now, rng.choice(here)
        admitted += sum(fleet.agents[target].take(REQUESTS, budget, now) for _ in range(3))
        # Rates matter once the leader is lost, which may be now.
        rates.append(sum(agent.meters[REQUESTS].rate for agent in fleet.agents.values() if agent.meters))

    fleet.run(60.0, offer)
    before = admitted
    # An agent that begins to use a budget has an equal part as its rate until its first exchange.
    rates.clear()
    fleet.run(60.0, offer)
    assert 0.97 * 600 <= admitted - before <= 1.01 * 600
    assert max(rates) <= budget.per_s * (1.0 + 1e-9)


def test_a_tenant_on_one_connection_has_the_whole_budget() -> None:
    budget = Budget(BudgetUnit.REQUESTS, 600.0)
    fleet = fleet_with(budget)
    admitted = 0

    def offer(now: float) -> None:
        nonlocal admitted
        for _ in range(5):
            admitted += fleet.agents["eu/a"].take(REQUESTS, budget, now)

    fleet.run(30.0, offer)
    before = admitted
    fleet.run(60.0, offer)
    assert admitted - before >= 0.95 * 600
    assert admitted <= 600 + 900 + 1
    # The burst at first: at once an equal part, and within 2 s the rest, but for the reserve of idle agents.
    fleet = fleet_with(budget)
    admitted = 0
    fleet.run(2.0, lambda now: [offer(now) for _ in range(20)] and None)
    assert admitted >= 0.95 * (600 + 20)


def test_an_agent_that_has_to_refuse_requests_learns_what_is_left() -> None:
    budget = Budget(BudgetUnit.REQUESTS, 6.0)
    fleet = fleet_with(budget)
    fleet.run(5.0, lambda now: fleet.agents["eu/a"].take(REQUESTS, budget, now) and None)
    late = fleet.agents["us/e"]
    assert not late.take(REQUESTS, budget, fleet.now)
    fleet.exchange("us/e")
    assert not late.take(REQUESTS, budget, fleet.now)
    answer = fleet.ask(late.request(fleet.now))
    assert answer is not None
    assert [(lease.amount, int(lease.rest)) for lease in answer.leases] == [(0.0, 0)]


def test_a_small_budget_is_used_wherever_requests_arrive() -> None:
    budget = Budget(BudgetUnit.REQUESTS, 10.0)
    fleet = fleet_with(budget)
    rng = Random(3)
    admitted = 0

    def offer(now: float) -> None:
        nonlocal admitted
        admitted += fleet.agents[rng.choice(AGENTS)].take(REQUESTS, budget, now)

    fleet.run(300.0, offer)
    assert 0.95 * 60 <= admitted <= 60


def test_an_idle_agent_keeps_no_request_that_another_one_lacks() -> None:
    budget = Budget(BudgetUnit.REQUESTS, 3.0)
    fleet = fleet_with(budget)
    idle, other = fleet.agents["eu/a"], fleet.agents["us/e"]
    fleet.run(5.0, lambda now: idle.take(REQUESTS, budget, now) and None)
    while idle.meters[REQUESTS].unspent < 1.0:
        idle.take(REQUESTS, budget, fleet.now)
        fleet.advance()
    began = fleet.now
    while not other.take(REQUESTS, budget, fleet.now):
        fleet.advance()
    assert fleet.now - began <= 3.5


@pytest.mark.parametrize("limit", [5.0, 10.0])
def test_a_burst_against_a_small_budget_admits_the_budget(limit: float) -> None:
    budget = Budget(BudgetUnit.REQUESTS, limit)
    for name in AGENTS[:3]:
        fleet = fleet_with(budget)
        admitted = 0
        # One agent was used before, so it has the whole burst after a pause.
        fleet.agents[name].take(REQUESTS, budget, fleet.now)
        fleet.run(72.0, lambda _: None)
        for _ in range(1000):
            admitted += fleet.agents[name].take(REQUESTS, budget, fleet.now)
        assert admitted == limit


def test_concurrent_requests_move_to_the_agent_that_wants_them() -> None:
    budget = Budget(BudgetUnit.CONCURRENT_REQUESTS, 20.0)
    key = key_of(budget.unit)
    fleet = fleet_with(budget)
    running = dict.fromkeys(AGENTS, 0)
    most = 0
    start = fleet.now

    def offer(now: float) -> None:
        nonlocal most
        target = AGENTS[int((now - start) / 8) % 3]
        for name in AGENTS:
            if name != target and running[name]:
                fleet.agents[name].meters[key].end()
                running[name] -= 1
        for _ in range(5):
            running[target] += fleet.agents[target].take(key, budget, now)
        most = max(most, sum(running.values()))

    fleet.run(4.0, offer)
    assert max(running.values()) >= 19
    fleet.run(27.0, offer)
    assert max(running.values()) >= 19
    assert most <= 20


@pytest.mark.parametrize(
    ("places", "clients", "gap_s", "runs_s"),
    [(2, 1, 1.0, 0.1), (2, 1, 0.2, 0.1), (1, 1, 0.2, 0.1), (2, 2, 0.2, 0.3), (3, 3, 0.1, 1.0), (20, 20, 0.1, 0.5)],
)
def test_places_are_where_requests_arrive(places: int, clients: int, gap_s: float, runs_s: float) -> None:
    budget = Budget(BudgetUnit.CONCURRENT_REQUESTS, float(places))
    fleet = fleet_with(budget)
    key = key_of(budget.unit)
    turns = cycle(fleet.agents.values())
    begins = [fleet.now + gap_s * number / clients for number in range(clients)]
    at: list[Agent | None] = [None] * clients
    ends = [inf] * clients
    waits: list[float] = []

    def offer(now: float) -> None:
        for client in range(clients):
            agent = at[client]
            if agent is not None and now >= ends[client]:
                agent.meters[key].end()
                at[client], begins[client], ends[client] = None, now + gap_s, inf
            elif now >= begins[client] and ends[client] == inf:
                agent = at[client] = agent or next(turns)
                if agent.take(key, budget, now):
                    waits.append(now - begins[client])
                    ends[client] = now + runs_s
        assert sum(meter.used for agent in fleet.agents.values() for meter in agent.meters.values()) <= places

    # A step is the time between two exchanges of an agent.
    fleet.run(60.0, offer, 0.1)
    assert mean(waits) <= 0.4
    assert max(waits) <= 1.0, "as long as requests wait"


def test_requests_that_wait_at_an_agent_without_a_leader_keep_no_place_from_others() -> None:
    budget = Budget(BudgetUnit.CONCURRENT_REQUESTS, 20.0)
    fleet = fleet_with(budget)
    key = key_of(budget.unit)
    cut, other = fleet.agents["eu/a"], fleet.agents["us/e"]
    while len(other.meters) == 0 or other.meters[key].used < 20.0:
        other.take(key, budget, fleet.now)
        fleet.advance()
    assert not cut.take(key, budget, fleet.now)
    fleet.advance()
    assert fleet.leader is not None
    divided = fleet.leader.budgets[key]
    assert divided.wanted() == 1.0
    for _ in range(200):
        fleet.advance(cut={"eu/a"})
    assert divided.accounts["eu/a"].is_silent
    assert divided.wanted() == 0.0
    assert "eu/a" not in divided.holders(0.0)


def test_money_is_used_up_and_not_exceeded() -> None:
    budget = Budget(BudgetUnit.MONEY_PER_DAY, 100.0)
    key = key_of(budget.unit)
    fleet = fleet_with(budget)
    rng = Random(5)
    spent = 0.0

    def offer(now: float) -> None:
        nonlocal spent
        for _ in range(20):
            if fleet.agents[rng.choice(AGENTS)].take(key, budget, now, 0.02):
                spent += 0.02

    fleet.run(60.0, offer)
    assert 95.0 <= spent <= 100.0 + 1e-6


def test_a_budget_of_a_region_is_divided_in_the_region() -> None:
    budget = Budget(BudgetUnit.REQUESTS, 60.0, BudgetScope.REGION)
    fleet = fleet_with(budget, "us")
    admitted = sum(fleet.agents["us/e"].take(key_of(budget.unit, "us"), budget, fleet.now) for _ in range(100))
    assert admitted == 20


def test_agents_that_are_added_under_pressure_exceed_nothing() -> None:
    budget = Budget(BudgetUnit.REQUESTS, 600.0)
    fleet = BudgetFleet({REQUESTS: budget}, {"eu": ["a"], "us": ["b"]})
    for _ in range(5):
        fleet.advance()
    rng = Random(11)
    admitted, worst, start = 0, 0.0, fleet.now

    def offer(now: float) -> None:
        nonlocal admitted, worst
        for name in rng.choices(list(fleet.agents), k=5):
            admitted += fleet.agents[name].take(REQUESTS, budget, now)
        worst = max(worst, admitted / (budget.limit + (now - start) * budget.per_s) - 1.0)

    fleet.run(40.0, offer)
    for name in "cdefghij":
        fleet.agents[f"ap/{name}"] = Agent(name, "ap", 1, fleet.now)
        fleet.run(0.5, offer)
    fleet.run(40.0, offer)
    allowed = budget.limit + (fleet.now - start) * budget.per_s
    assert worst <= 0.05
    assert admitted >= 0.95 * allowed


def test_a_leader_that_is_lost_under_pressure_lets_nothing_be_exceeded() -> None:
    budget = Budget(BudgetUnit.REQUESTS, 600.0)
    fleet = fleet_with(budget)
    rng = Random(13)
    admitted, worst, start = 0, 0.0, fleet.now

    def offer(now: float) -> None:
        nonlocal admitted, worst
        for name in rng.choices(AGENTS, [9.0, 3.0] + [0.1] * 8, k=3):
            admitted += fleet.agents[name].take(REQUESTS, budget, now)
        worst = max(worst, admitted / (budget.limit + (now - start) * budget.per_s) - 1.0)

    fleet.run(70.0, offer)
    before, lost_at = admitted, fleet.now
    fleet.leader = None
    fleet.run(40.0, offer)
    # The leases end after 10 s, in which nothing is added; then the last rates continue.
    assert admitted - before >= 0.8 * (fleet.now - lost_at - 10.0) * budget.per_s
    fleet.elect(2)
    fleet.run(40.0, offer)
    assert worst <= 0.05


@pytest.mark.parametrize(
    ("unit", "unaware", "aware"),
    [
        (BudgetUnit.REQUESTS, 3 * 16.0, 0.0),
        (BudgetUnit.INPUT_TOKENS, 3 * 15.25, 0.0),
        (BudgetUnit.GPU_SECONDS, 3 * 15.25, 0.0),
        (BudgetUnit.MONEY_PER_DAY, 3 * 61.0 * 0.05 / 4, 0.0),
    ],
)
def test_what_agents_may_still_use_that_do_not_know_of_the_use_is_not_granted(
    unit: BudgetUnit, unaware: float, aware: float
) -> None:
    key = key_of(unit)
    fleet = FleetBudgets(1, lambda key, tier: Budget(key.unit, 61.0), 0.0)
    fleet.set_agents({f"eu/{name}": "eu" for name in "abcd"}, 0.0)
    uses = (BudgetUse(key, 1, 0.0, 0.0, 1.0),)
    for number, names in ((1, "abcd"), (2, "abcd")):
        for name in names:
            fleet.receive(ExchangeRequest(name, "eu", 1, number, number - 1, 1, uses * (name == "a")), 1.0, 1.8e9)
            if number == 1 and name == "a":
                assert fleet.reserve(fleet.budgets[key]) == pytest.approx(unaware)
            fleet.answer(f"eu/{name}", number, 1.0, 1.8e9)
    assert fleet.reserve(fleet.budgets[key]) == pytest.approx(aware)


def test_a_new_leader_grants_only_the_rates_that_it_knows_until_every_agent_has_reported() -> None:
    fleet = FleetBudgets(2, lambda key, tier: Budget(key.unit, 60.0), 0.0)
    fleet.set_agents({"eu/a": "eu", "eu/b": "eu"}, 0.0)
    for number, now in ((1, 1.0), (2, 5.0)):
        uses = (BudgetUse(REQUESTS, 1, 0.0, 0.0, 1.0, 0.25),)
        fleet.receive(ExchangeRequest("a", "eu", 1, number, 0, 0, uses), now, 1.8e9)
    assert fleet.budgets[REQUESTS].available == pytest.approx(4.0 * 0.25)


def test_an_agent_whose_clock_is_ahead_returns_no_money() -> None:
    divided = DividedBudget(key_of(BudgetUnit.MONEY_PER_DAY), Budget(BudgetUnit.MONEY_PER_DAY, 100.0), 0.0, 100.0, 7)
    divided.report("eu/a", BudgetUse(divided.key, 1, 80.0, 0.0, 0.0, period=7))
    divided.report("eu/a", BudgetUse(divided.key, 1, 0.0, 0.0, 0.0, period=8))
    assert divided.available == 20.0
    divided.report("eu/a", BudgetUse(divided.key, 1, 85.0, 0.0, 0.0, period=7))
    assert divided.available == 15.0


def test_what_no_agent_uses_any_more_is_forgotten() -> None:
    fleet = FleetBudgets(1, lambda key, tier: Budget(key.unit, 60.0), 0.0)
    fleet.set_agents({"eu/a": "eu"}, 0.0)
    number = 0
    for begin in range(0, 4 * MAX_CHANGES, 100):
        for closed in (False, True):
            number += 1
            uses = tuple(
                BudgetUse(BudgetKey(f"t{at}", "", BudgetUnit.REQUESTS, ""), 1, 0.0, 0.0, 0.0, closed=closed)
                for at in range(begin, begin + 100)
            )
            now = number * 100.0
            fleet.receive(ExchangeRequest("a", "eu", 1, number, number - 1, 1, uses), now, 1.8e9)
            fleet.answer("eu/a", number, now, 1.8e9)
            fleet.tick(now, 1.8e9)
    assert len(fleet.budgets) <= 200
    assert len(fleet._changes) <= 2 * len(fleet.budgets) + MAX_CHANGES
