"""Exchanges between agents and the leader that divides their budgets, one by one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.tenancy.budget_lease import BudgetKey, BudgetUse, period_of
from penstock.tenancy.divided_budget import DividedBudget
from penstock.tenancy.fleet_budgets import FleetBudgets, StaleExchange
from penstock.wire.budget_exchange import ExchangeAnswer, ExchangeRequest, UsedBudget

WALL = 20_000 * 86_400.0 + 3_600.0
"""Unix time (s): an hour of a day has passed."""

LEASE_END_S = 10.0 * 1.1 + 0.5
IDLE_S, RESHARE_S, SLACK, TOP_UP_S = 2.0, 0.2, 0.1, 5.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def key_of(unit: BudgetUnit, region: str = "", tenant: str = "team") -> BudgetKey:
    return BudgetKey(tenant, "", unit, region)


REQUESTS, MONEY, PLACES = (
    key_of(unit) for unit in (BudgetUnit.REQUESTS, BudgetUnit.MONEY_PER_DAY, BudgetUnit.CONCURRENT_REQUESTS)
)
LIMITS = {REQUESTS: 60.0, MONEY: 100.0, PLACES: 10.0}


class Leader:
    """A leader, with the agents that it has answered."""

    def __init__(self, agents: Mapping[str, str], epoch: int = 1) -> None:
        self.limits = dict(LIMITS)
        self.fleet = FleetBudgets(epoch, self.limit, 0.0)
        self.fleet.set_agents(agents, 0.0)
        self.numbers: dict[str, int] = {}

    def limit(self, key: BudgetKey, tier: str) -> Budget | None:
        limit = self.limits.get(key)
        return None if limit is None else Budget(key.unit, limit)

    def hear(self, sender: str, *uses: BudgetUse, now: float, epoch: int = 1, arrived: bool = True) -> ExchangeAnswer:
        """One exchange of an agent, which has received the last answer if `arrived`."""
        region, _, agent = sender.partition("/")
        last = self.numbers.get(sender, 0)
        self.numbers[sender] = last + 1
        answered = last if arrived else max(0, last - 1)
        request = ExchangeRequest(agent, region, epoch, last + 1, answered, self.fleet.epoch if last else 0, uses)
        self.fleet.receive(request, now, WALL)
        return self.fleet.answer(sender, last + 1, now, WALL)

    def budget(self, key: BudgetKey) -> DividedBudget:
        return self.fleet.budgets[key]


def used(key: BudgetKey, amount: float, unspent: float = 0.0, **more: float) -> BudgetUse:
    period = period_of(key.unit, WALL)
    return BudgetUse(key, 1, amount, unspent, more.get("demand", 1.0), more.get("rate", 0.0), period)


def test_an_answer_states_the_agents_of_the_fleet_and_of_the_region() -> None:
    leader = Leader({"eu/a": "eu", "eu/b": "eu", "us/c": "us"})
    answers = {name: leader.hear(name, now=1.0) for name in ("eu/a", "eu/b", "us/c")}
    assert {name: (each.agents, each.ranks) for name, each in answers.items()} == {
        "eu/a": ((3, 2), (0, 0)),
        "eu/b": ((3, 2), (1, 1)),
        "us/c": ((3, 1), (2, 0)),
    }


def test_a_fleet_may_lose_all_its_agents() -> None:
    leader = Leader({"eu/a": "eu"})
    leader.hear("eu/a", used(REQUESTS, 1.0), now=1.0)
    leader.fleet.set_agents({}, 1.0)
    leader.fleet.tick(2.0 + LEASE_END_S, WALL)
    leader.fleet.set_agents({}, 2.0 + LEASE_END_S)
    assert leader.fleet.budgets == {}, "it is full again"
    assert leader.fleet.census.count("") == 1


def test_an_agent_with_waiting_requests_learns_what_is_left_once_the_others_were_heard() -> None:
    leader = Leader({"eu/a": "eu", "eu/b": "eu"})
    leader.hear("eu/a", used(PLACES, 10.0), now=1.0)
    leader.hear("eu/b", now=1.0)
    waits = BudgetUse(PLACES, 1, 0.0, 0.0, 1.0, wanted=1)
    (lease,) = leader.hear("eu/b", waits, now=2.0).leases
    assert (lease.amount, lease.rest) == (0.0, -1.0), "the requests of the other agent may have ended"
    leader.hear("eu/a", used(PLACES, 10.0), now=3.0)
    (lease,) = leader.hear("eu/b", waits, now=4.0).leases
    assert (lease.amount, lease.rest) == (0.0, 0.0)


def test_only_the_newest_exchange_is_answered() -> None:
    leader = Leader({"eu/a": "eu"})
    leader.hear("eu/a", now=1.0)
    for sender, number in (("eu/a", 2), ("eu/a", 0), ("eu/unknown", 1)):
        with pytest.raises(StaleExchange):
            leader.fleet.answer(sender, number, 1.0, WALL)
    with pytest.raises(StaleExchange):
        leader.fleet.receive(ExchangeRequest("a", "eu", 1, 1, 0, 1), 1.0, WALL)


@pytest.mark.parametrize("arrived", [True, False])
def test_a_grant_is_held_by_the_agent_only_if_it_arrived(arrived: bool) -> None:
    leader = Leader({"eu/a": "eu"})
    (lease,) = leader.hear("eu/a", used(MONEY, 0.0), now=1.0).leases
    assert lease.amount == 25.0, "a quarter of the budget"
    budget = leader.budget(MONEY)
    assert (budget.available, budget.held) == (75.0, 25.0)
    leader.hear("eu/a", now=2.0, arrived=arrived)
    account = budget.accounts["eu/a"]
    assert (budget.available, account.unspent) == ((75.0, 25.0) if arrived else (100.0, 0.0))


def test_a_counter_that_is_closed_is_no_counter_of_the_agent() -> None:
    leader = Leader({"eu/a": "eu"})
    leader.hear("eu/a", used(MONEY, 5.0), now=1.0)
    closed = BudgetUse(MONEY, 1, 5.0, 0.0, 0.0, period=period_of(MONEY.unit, WALL), closed=True)
    leader.hear("eu/a", closed, now=2.0)
    assert leader.budget(MONEY).accounts == {}
    assert leader.fleet._exchanges["eu/a"].budgets == {}
    assert leader.fleet.totals()[MONEY].spent == 5.0
    leader.fleet.tick(3.0, WALL)
    assert leader.fleet.budgets == {}, "less than half of it is used"
    assert leader.fleet.totals()[MONEY].spent == 5.0
    leader.hear("eu/a", used(MONEY, 5.0), now=4.0)
    assert leader.budget(MONEY).available + leader.budget(MONEY).held == 95.0, "it is charged once"


def test_a_budget_that_the_policy_no_longer_has_is_forgotten() -> None:
    leader = Leader({"eu/a": "eu"})
    leader.hear("eu/a", used(REQUESTS, 1.0), used(PLACES, 1.0), now=1.0)
    del leader.limits[REQUESTS]
    leader.fleet.tick(2.0, WALL)
    assert list(leader.fleet.budgets) == [PLACES]
    assert leader.hear("eu/a", used(REQUESTS, 1.0), now=3.0).announced == (UsedBudget(REQUESTS, False),)


def test_an_agent_that_restarts_loses_what_it_held() -> None:
    leader = Leader({"eu/a": "eu"})
    leader.hear("eu/a", used(REQUESTS, 10.0), now=1.0)
    leader.hear("eu/a", now=1.0)
    assert leader.budget(REQUESTS).held > 0.0
    leader.numbers.clear()
    leader.hear("eu/a", now=1.0, epoch=2)
    budget = leader.budget(REQUESTS)
    assert (budget.accounts, budget.held, budget.available) == ({}, 0.0, 50.0)


def test_the_counters_that_an_agent_does_not_report_receive_what_has_become_available() -> None:
    leader = Leader({"eu/a": "eu"})
    leader.hear("eu/a", used(REQUESTS, 60.0, demand=5.0), now=1.0)
    assert leader.hear("eu/a", now=TOP_UP_S - 0.1).leases == ()
    (lease,) = leader.hear("eu/a", now=TOP_UP_S + 1.0).leases
    assert lease.amount == pytest.approx(TOP_UP_S)


def test_the_leases_of_a_silent_agent_end_and_its_rate_is_withheld() -> None:
    leader = Leader({"eu/a": "eu", "eu/b": "eu"})
    for name in ("eu/a", "eu/b"):
        leader.hear(name, used(REQUESTS, 30.0, rate=0.5), now=1.0)
    budget = leader.budget(REQUESTS)
    leader.fleet.tick(1.0 + LEASE_END_S, WALL)
    assert budget.silent == 0
    leader.hear("eu/b", now=1.0 + LEASE_END_S)
    leader.fleet.tick(1.1 + LEASE_END_S, WALL)
    assert (budget.silent, budget.accounts["eu/a"].is_silent) == (1, True)
    leader.hear("eu/a", now=2.0 + LEASE_END_S)
    assert budget.silent == 0


def test_an_agent_that_is_not_registered_any_more_withholds_nothing() -> None:
    leader = Leader({"eu/a": "eu", "eu/b": "eu"})
    leader.hear("eu/a", used(PLACES, 4.0), now=1.0)
    leader.hear("eu/b", used(PLACES, 1.0), now=1.0)
    leader.fleet.set_agents({"eu/b": "eu"}, 1.0)
    leader.hear("eu/b", now=1.0 + LEASE_END_S)
    leader.fleet.tick(1.1 + LEASE_END_S, WALL)
    assert list(leader.budget(PLACES).accounts) == ["eu/b"]
    assert "eu/a" not in leader.fleet._exchanges


def test_requests_above_their_estimates_withhold_what_they_used_up_to_ten_bursts() -> None:
    leader, left = Leader({"eu/a": "eu", "eu/b": "eu"}), []
    for name in ("eu/a", "eu/b"):
        leader.hear(name, now=1.0)
    for name, amount in (("eu/a", 360.0), ("eu/b", 120.0), ("eu/a", 2_200.0)):
        leader.hear(name, used(REQUESTS, amount, -100.0), now=1.0)
        left.append(leader.budget(REQUESTS).available)
    assert left == [-300.0, -420.0, -600.0]


@pytest.mark.parametrize("silent_s", [0.0, LEASE_END_S])
def test_a_counter_that_was_used_without_the_leader_withholds_one_burst(silent_s: float) -> None:
    leader = Leader({"eu/a": "eu", "eu/b": "eu"})
    if silent_s:
        leader.hear("eu/a", now=1.0)
        leader.fleet.tick(1.1 + silent_s, WALL)
    leader.hear("eu/a", used(REQUESTS, 900.0, -100.0), now=1.2 + silent_s)
    assert leader.budget(REQUESTS).available == -60.0


def test_an_agent_that_never_used_a_budget_may_use_an_equal_part_while_it_is_silent() -> None:
    leader = Leader({"eu/a": "eu", "eu/b": "eu", "eu/c": "eu", "eu/d": "eu"})
    for name in ("eu/a", "eu/b", "eu/c", "eu/d"):
        leader.hear(name, now=1.0)
    leader.hear("eu/a", used(REQUESTS, 60.0), now=1.0)
    budget = leader.budget(REQUESTS)
    leader.hear("eu/a", now=1.0 + LEASE_END_S)
    before = budget.available + budget.held
    leader.fleet.tick(1.1 + LEASE_END_S, WALL)
    assert len(leader.fleet._silent) == 3
    leader.fleet.tick(5.1 + LEASE_END_S, WALL)
    # Of one request a second, three of four agents may use an equal part each.
    assert budget.available + budget.held - before == pytest.approx(0.1 + 4.0 * 0.25, abs=0.08)


@pytest.mark.parametrize(
    ("days", "spent"),
    [
        (1, 0.0),
        # The clock is set back by less than a day: the day has begun.
        (-1, 40.0),
        (-2, 0.0),
    ],
)
def test_money_is_of_a_day(days: int, spent: float) -> None:
    leader = Leader({"eu/a": "eu"})
    leader.hear("eu/a", used(MONEY, 40.0), now=1.0)
    assert leader.budget(MONEY).period == 20_000
    leader.fleet.tick(2.0, WALL + days * 86_400.0)
    budget = leader.budget(MONEY)
    assert budget.period == (20_000 if days == -1 else 20_000 + days)
    assert sum(budget.spent().values()) == spent


def test_a_change_is_announced_until_the_agent_has_received_it_and_to_its_region_alone() -> None:
    leader = Leader({"eu/a": "eu", "eu/b": "eu", "us/c": "us"})
    here = key_of(BudgetUnit.REQUESTS, "eu")
    leader.limits[here] = 6.0
    leader.hear("eu/b", now=1.0)
    leader.hear("us/c", now=1.0)
    leader.hear("eu/a", used(here, 1.0), now=1.0)
    news = (UsedBudget(here, True),)
    assert leader.hear("eu/b", now=2.0).announced == news
    assert leader.hear("eu/b", now=2.0, arrived=False).announced == news
    assert leader.hear("eu/b", now=3.0).announced == ()
    assert leader.hear("us/c", now=3.0).announced == ()


def test_more_changes_than_an_answer_holds_follow_in_the_next_ones() -> None:
    leader = Leader({"eu/a": "eu", "eu/b": "eu"})
    leader.hear("eu/b", now=1.0)
    keys = [key_of(BudgetUnit.REQUESTS, tenant=f"t{number}") for number in range(2_500)]
    leader.limits |= dict.fromkeys(keys, 6.0)
    leader.hear("eu/a", *(used(key, 1.0) for key in keys), now=1.0)
    answers = [leader.hear("eu/b", now=2.0) for _ in range(3)]
    assert [len(each.announced) for each in answers] == [2_000, 500, 0]
    assert [each.key for answer in answers for each in answer.announced] == keys
    assert [each.is_complete for each in answers] == [False, True, True]


def test_places_that_are_running_or_held_are_not_recalled_without_a_surplus() -> None:
    leader = Leader({"eu/a": "eu"})
    (lease,) = leader.hear("eu/a", used(PLACES, 1.0, demand=1.0), now=1.0).leases
    assert (lease.amount, lease.keep) == (9.0, 9.0)
    assert leader.hear("eu/a", used(PLACES, 5.0, 5.0, demand=5.0), now=2.0).leases == ()


@pytest.mark.parametrize(("later_s", "is_divided"), [(RESHARE_S - 0.01, False), (RESHARE_S + 0.01, True)])
def test_a_budget_is_divided_again_after_a_fifth_of_a_second(later_s: float, is_divided: bool) -> None:
    budget = DividedBudget(REQUESTS, Budget(REQUESTS.unit, 60.0), 1.0, 60.0, 0)
    accounts = [budget.report(name, used(REQUESTS, 0.0)) for name in ("eu/a", "eu/b")]
    assert budget.reshare(1.0, 0.0, WALL)
    accounts[0].demand, accounts[1].demand = 0.3, 0.1
    assert budget.reshare(1.0 + later_s, 0.0, WALL) is is_divided
    shares = [0.75, 0.25] if is_divided else [0.5, 0.5]
    assert [account.share for account in accounts] == pytest.approx(shares)


@pytest.mark.parametrize(("target", "surplus"), [(9.0, 0.0), (8.9, 1.1)])
def test_an_agent_keeps_a_tenth_more_than_its_part(target: float, surplus: float) -> None:
    budget = DividedBudget(MONEY, Budget(MONEY.unit, 100.0), 0.0, 100.0, 1)
    account = budget.report("eu/a", BudgetUse(MONEY, 1, 0.0, 10.0, 1.0, period=1))
    assert budget.surplus(account, target) == pytest.approx(surplus)


@pytest.mark.parametrize(("idle_s", "has_turn"), [(IDLE_S - 0.1, True), (IDLE_S, False)])
def test_an_agent_that_is_idle_leaves_the_last_request_to_one_that_lacks_it(idle_s: float, has_turn: bool) -> None:
    """Two agents with equal demand share one request."""
    budget = DividedBudget(REQUESTS, Budget(REQUESTS.unit, 1.0), 0.0, 1.0, 0)
    idle = budget.report("eu/a", used(REQUESTS, 0.0, 1.0))
    budget.refill(idle_s)
    lacking = budget.report("eu/b", used(REQUESTS, 0.0))
    budget.reshare(idle_s, 0.0, WALL)
    assert budget.is_short(lacking)
    assert budget.target(idle, 0.0) == (1.0 if has_turn else 0.0)
