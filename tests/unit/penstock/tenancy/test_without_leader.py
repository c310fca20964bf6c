"""Budgets at agents without a leader, and their names and periods."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit, OnLoss
from penstock.tenancy.budget_lease import keyed_budgets, period_end, period_of
from penstock.tenancy.without_leader import rate_without_leader

REQUESTS = Budget(BudgetUnit.REQUESTS, 600.0)


@pytest.mark.parametrize(
    ("ended_s", "rule", "rate"),
    [
        (299.0, OnLoss.REFUSE, 7.0),
        (300.0, OnLoss.REFUSE, 0.0),
        (300.0, OnLoss.SHARE, 2.5),
        (1e6, OnLoss.KEEP, 7.0),
    ],
)
def test_the_last_rate_continues_for_hold_s_and_then_the_rule_applies(
    ended_s: float, rule: OnLoss, rate: float
) -> None:
    assert rate_without_leader(REQUESTS, 7.0, 4, ended_s, (300.0, rule)) == rate


def test_a_rate_from_before_the_limit_was_lowered_is_limited() -> None:
    assert rate_without_leader(REQUESTS, 70.0, 4, 0.0, (300.0, OnLoss.KEEP)) == 10.0


def test_a_part_of_concurrent_requests_is_at_least_one() -> None:
    five = Budget(BudgetUnit.CONCURRENT_REQUESTS, 5.0)
    assert rate_without_leader(five, 0.0, 10, 400.0, (300.0, OnLoss.SHARE)) == 1.0


def test_of_two_budgets_that_limit_the_same_the_smaller_one_has_an_effect() -> None:
    regional = Budget(BudgetUnit.REQUESTS, 60.0, BudgetScope.REGION)
    found = keyed_budgets("team", "", (REQUESTS, regional, Budget(BudgetUnit.REQUESTS, 6.0)), "eu")
    assert {(key.region, budget.limit) for key, budget in found.items()} == {("", 6.0), ("eu", 60.0)}


@pytest.mark.parametrize("unit", [BudgetUnit.MONEY_PER_DAY, BudgetUnit.MONEY_PER_MONTH])
def test_a_period_ends_where_the_next_one_begins(unit: BudgetUnit) -> None:
    now = datetime(2026, 12, 31, 23, 59, tzinfo=UTC).timestamp()
    end = period_end(unit, period_of(unit, now))
    assert end == datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert period_of(unit, end) == period_of(unit, now) + 1
