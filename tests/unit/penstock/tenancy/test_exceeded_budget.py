"""What a client reads about the budget because of which its request was refused."""

from __future__ import annotations

import pytest

from penstock.policy.kinds.budgets import BudgetScope, BudgetUnit
from penstock.tenancy.exceeded_budget import ExceededBudget, amount_text

FLEET, REGION = BudgetScope.FLEET, BudgetScope.REGION


@pytest.mark.parametrize(
    ("needed", "left", "retry_after_s", "text"),
    [
        (1.0, -5.0, 0.0001, "the request needs about 1, 0 is left; retry in 0.001 s"),
        (99.94, 1.234, 1.5, "the request needs about 99.9, 1.23 is left; retry in 1.5 s"),
        (1234.6, 100.4, 119.0, "the request needs about 1235, 100 is left; retry in 119 s"),
        (1.0, 0.0, 120.0, "the request needs about 1, 0 is left; retry in 2 min"),
        (1.0, 0.0, 119 * 60.0, "the request needs about 1, 0 is left; retry in 119 min"),
        (1.0, 0.0, 121 * 60.0, "the request needs about 1, 0 is left; retry in 2 h 1 min"),
    ],
)
def test_amounts_and_times(needed: float, left: float, retry_after_s: float, text: str) -> None:
    budget = ExceededBudget("acme", "", BudgetUnit.REQUESTS, 60.0, FLEET, needed, left, retry_after_s)
    assert budget.describe() == f"tenant acme has used up the budget of 60 requests per minute for the fleet: {text}"


@pytest.mark.parametrize(("limit", "text"), [(2e6, "2000000"), (123_456_789.5, "123456789.5"), (0.25, "0.25")])
def test_limits_are_in_digits(limit: float, text: str) -> None:
    budget = ExceededBudget("acme", "", BudgetUnit.TOKENS, limit, FLEET, 2.5e6, 1e5, 1.0)
    assert f"the budget of {text} tokens per minute" in budget.describe()
    assert (amount_text(2.5e6), amount_text(1e5)) == ("2500000", "100000")


def test_places_come_back_when_a_request_ends() -> None:
    budget = ExceededBudget("acme", "psk-1", BudgetUnit.CONCURRENT_REQUESTS, 4.0, REGION, 1.0, 0.0, 1.0)
    assert budget.describe() == (
        "key psk-1 has used up the budget of 4 concurrent requests in this region: as many requests run; "
        "retry when one has ended"
    )
    assert not budget.is_money


def test_an_amount_that_other_agents_hold_is_not_used_up() -> None:
    budget = ExceededBudget("acme", "", BudgetUnit.REQUESTS, 6.0, FLEET, 1.0, 5.0, 1.0, waits_for_lease=True)
    assert budget.describe() == (
        "tenant acme has no part yet, at this agent, of the budget of 6 requests per minute for the fleet: "
        "the request needs about 1, 5 is left; retry in 1 s"
    )


def test_without_a_leader_an_agent_has_used_up_its_part_alone() -> None:
    budget = ExceededBudget("acme", "", BudgetUnit.REQUESTS, 60.0, FLEET, 1.0, 0.0, 1.0, is_without_leader=True)
    assert budget.describe() == (
        "tenant acme has used up the budget of 60 requests per minute for the fleet: the request needs about 1, "
        "0 is left of this agent's part (no leader divides the budget now); retry in 1 s"
    )


def test_a_request_that_costs_more_than_the_whole_budget_is_not_told_to_wait_for_the_next_day() -> None:
    budget = ExceededBudget("acme", "", BudgetUnit.MONEY_PER_DAY, 3.0, FLEET, 43.3, 3.0, 24_540.0)
    assert budget.describe() == (
        "tenant acme cannot send this request with the budget of 3 money per day for the fleet: "
        "the request needs about 43.3; lower max_tokens, or raise the budget"
    )
