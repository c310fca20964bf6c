"""What becomes of a budget when an agent's lease ends: nothing is lost, and nothing is charged twice."""

from __future__ import annotations

import pytest

from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.tenancy.budget_lease import BudgetKey, BudgetUse
from penstock.tenancy.divided_budget import DividedBudget, MoneyTotal, restored, total_of


def divided(unit: BudgetUnit, limit: float, period: int = 0) -> DividedBudget:
    return DividedBudget(BudgetKey("team", "", unit, ""), Budget(unit, limit), 0.0, limit, period)


def use(budget: DividedBudget, used: float, unspent: float, rate: float = 0.0, epoch: int = 1) -> BudgetUse:
    return BudgetUse(budget.key, epoch, used, unspent, 1.0, rate, budget.period)


def test_what_an_agent_held_becomes_available_and_its_rate_is_withheld() -> None:
    budget = divided(BudgetUnit.REQUESTS, 60.0)
    account = budget.report("eu/a", use(budget, 10.0, 20.0, 0.25))
    budget.grant(account, 5.0)
    assert (budget.available, budget.held) == (25.0, 25.0)
    for _ in range(2):
        budget.expire("eu/a", 2, is_registered=True)
        assert (budget.available, budget.held, budget.expired, budget.silent) == (50.0, 0.0, 25.0, 1)
    # It continues at an equal part, which is larger than its rate: 1 a second, divided by two.
    assert (account.announced_rate, budget.rates_in_force) == (0.5, 0.5)
    budget.refill(4.0)
    assert (account.held, budget.available) == (2.0, 52.0)
    # Its next report is charged: it used 12 since.
    budget.report("eu/a", use(budget, 22.0, 0.0, 0.25))
    assert (budget.available, budget.held, budget.silent) == (42.0, 0.0, 0)


def test_a_rate_that_is_larger_than_an_equal_part_stays_in_force() -> None:
    budget = divided(BudgetUnit.REQUESTS, 60.0)
    account = budget.report("eu/a", use(budget, 0.0, 0.0, 0.75))
    budget.expire("eu/a", 2, is_registered=True)
    assert account.announced_rate == 0.75
    budget.expire("eu/b", 2, is_registered=True)
    assert budget.silent == 1


def test_a_debt_of_an_agent_whose_lease_ends_stays() -> None:
    budget = divided(BudgetUnit.REQUESTS, 60.0)
    account = budget.report("eu/a", use(budget, 30.0, -5.0))
    budget.expire("eu/a", 1, is_registered=True)
    assert (account.unspent, account.held, budget.available) == (-5.0, 0.0, 30.0)


def test_places_of_running_requests_stay_taken_when_a_lease_ends() -> None:
    budget = divided(BudgetUnit.CONCURRENT_REQUESTS, 12.0)
    account = budget.report("eu/a", use(budget, 2.0, 3.0))
    budget.expire("eu/a", 3, is_registered=True)
    # Two run, and the agent may begin two more by its equal part of four.
    assert (account.used, account.held, budget.available) == (2.0, 2.0, 8.0)
    budget.expire("eu/a", 3, is_registered=False)
    assert (budget.available, budget.held, budget.silent, budget.accounts) == (12.0, 0.0, 0, {})


def test_a_counter_that_ended_leaves_its_places_to_the_others() -> None:
    budget = divided(BudgetUnit.CONCURRENT_REQUESTS, 12.0)
    budget.report("eu/a", use(budget, 2.0, 3.0))
    for _ in range(2):
        budget.report_ended("eu/a", use(budget, 0.0, 0.0))
        assert (budget.available, budget.accounts, budget.counters) == (12.0, {}, {})


def test_an_agent_that_is_heard_again_holds_nothing_until_it_reports() -> None:
    budget = divided(BudgetUnit.REQUESTS, 60.0)
    account = budget.report("eu/a", use(budget, 0.0, 10.0, 0.5))
    budget.revive("eu/b")
    budget.revive("eu/a")
    assert account.held == 10.0
    budget.expire("eu/a", 1, is_registered=True)
    budget.refill(10.0)
    assert account.held == 10.0
    for _ in range(2):
        budget.revive("eu/a")
        assert (account.held, budget.held, budget.silent, account.is_silent) == (0.0, 0.0, 0, False)


def test_what_a_lost_agent_used_is_charged_once_if_it_reports_again() -> None:
    budget = divided(BudgetUnit.MONEY_PER_DAY, 100.0, 7)
    budget.report("eu/a", use(budget, 30.0, 10.0))
    budget.expire("eu/a", 1, is_registered=False)
    budget.leave("eu/a")
    assert (budget.available, budget.held, budget.spent()) == (70.0, 0.0, {("eu/a", 1): 30.0})
    budget.report("eu/a", use(budget, 35.0, 0.0))
    assert (budget.available, budget.spent()) == (65.0, {("eu/a", 1): 35.0})


def test_an_agent_without_money_of_a_lease_continues_at_its_own_rate_only() -> None:
    budget = divided(BudgetUnit.MONEY_PER_DAY, 86_400.0, 7)
    account = budget.report("eu/a", use(budget, 0.0, 0.0, 0.125))
    budget.expire("eu/a", 1, is_registered=True)
    assert account.announced_rate == 0.125


def test_another_day_begins_with_the_whole_budget() -> None:
    budget = divided(BudgetUnit.MONEY_PER_DAY, 100.0, 7)
    account = budget.report("eu/a", use(budget, 30.0, 10.0))
    budget.report_ended("eu/b", use(budget, 20.0, 0.0))
    assert (budget.available, budget.counters) == (40.0, {("eu/b", 1): 20.0})
    budget.begin(8)
    assert (budget.period, budget.available, budget.held, budget.counters) == (8, 100.0, 0.0, {})
    assert (account.used, account.unspent, account.granted, account.held) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("reported", [30.0, 45.0])
def test_a_saved_total_charges_what_was_used_and_no_more(reported: float) -> None:
    budget = divided(BudgetUnit.MONEY_PER_DAY, 100.0, 7)
    budget.report("eu/a", use(budget, 30.0, 10.0))
    budget.report_ended("eu/b", use(budget, 20.0, 0.0))
    total = total_of(budget)
    assert total == MoneyTotal(7, 50.0, (("eu/b", 1, 20.0), ("eu/a", 1, 30.0)))
    after = divided(BudgetUnit.MONEY_PER_DAY, 100.0, 7)
    restored(after, total)
    assert (after.available, after.spent()) == (50.0, {("eu/b", 1): 20.0, ("eu/a", 1): 30.0})
    after.report("eu/a", use(after, reported, 0.0))
    assert after.available == 80.0 - reported


def test_the_reserve_is_left_out_of_the_parts_of_agents() -> None:
    for unit in (BudgetUnit.CONCURRENT_REQUESTS, BudgetUnit.REQUESTS):
        budget = divided(unit, 12.0)
        account = budget.report("eu/a", use(budget, 3.0, 1.0))
        assert budget.reshare(1.0, 2.0, 0.0)
        assert budget.target(account, 2.0) == 7.0


@pytest.mark.parametrize(("late", "charged"), [(8.0, 8.0), (5.0, 5.0), (3.0, 5.0)])
def test_the_last_report_of_a_counter_of_money_is_charged_beyond_what_is_charged_of_it(
    late: float, charged: float
) -> None:
    budget = divided(BudgetUnit.MONEY_PER_DAY, 100.0, 7)
    budget.report("eu/a", use(budget, 5.0, 2.0))
    budget.leave("eu/a")
    for _ in range(2):
        budget.report_ended("eu/a", use(budget, late, 0.0))
        assert (budget.available, budget.held) == (100.0 - charged, 0.0)
    budget.report_ended("eu/a", use(budget, 1.0, 0.0, epoch=2))
    assert budget.available == 99.0 - charged


@pytest.mark.parametrize("arrived", [True, False])
def test_a_grant_is_returned_only_if_its_answer_did_not_arrive(arrived: bool) -> None:
    budget = divided(BudgetUnit.MONEY_PER_DAY, 100.0, 7)
    account = budget.report("eu/a", use(budget, 5.0, 2.0))
    budget.grant(account, 10.0)
    assert (budget.available, account.unspent, account.granted) == (83.0, 2.0, 10.0)
    budget.settle(account, arrived=arrived)
    assert (budget.available, account.unspent, account.granted) == ((83.0, 12.0, 0.0) if arrived else (93.0, 2.0, 0.0))


@pytest.mark.parametrize(
    ("unit", "limit", "available"),
    [
        # 10 are used and 20 held: a larger limit is available at once, but for a budget that refills.
        (BudgetUnit.MONEY_PER_DAY, 150.0, 120.0),
        (BudgetUnit.MONEY_PER_DAY, 40.0, 10.0),
        (BudgetUnit.MONEY_PER_DAY, 15.0, -15.0),
        (BudgetUnit.CONCURRENT_REQUESTS, 150.0, 120.0),
        (BudgetUnit.REQUESTS, 150.0, 70.0),
        (BudgetUnit.REQUESTS, 40.0, 20.0),
    ],
)
def test_another_limit_leaves_what_is_used_and_held(unit: BudgetUnit, limit: float, available: float) -> None:
    budget = divided(unit, 100.0, 7)
    budget.report("eu/a", use(budget, 10.0, 20.0))
    budget.limit_to(Budget(unit, 100.0))
    assert budget.available == 70.0
    budget.limit_to(Budget(unit, limit))
    assert (budget.available, budget.held, budget.whole) == (available, 20.0, limit)
    assert budget.accounts["eu/a"].used == 10.0


def test_money_lasts_until_the_end_of_its_day() -> None:
    day = 20_000
    budget = divided(BudgetUnit.MONEY_PER_DAY, 100.0, day)
    budget.report("eu/a", use(budget, 40.0, 10.0))
    assert budget.rate(day * 86_400.0 + 86_400.0 - 600.0) == pytest.approx(0.1)
    assert budget.rate(day * 86_400.0 + 86_400.0 - 1.0) == pytest.approx(1.0), "at most in a minute"
