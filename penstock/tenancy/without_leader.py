"""Rates of budgets at an agent whose leases have ended, because it reaches no leader."""

from __future__ import annotations

from typing import Final

from penstock.policy.kinds.budgets import Budget, BudgetUnit, OnLoss

MIN_AMOUNT: Final = 1e-9
"""Minimum limit of a budget, and minimum of its rate (1/s): nothing can be divided by the least number above 0."""

_SECONDS = {BudgetUnit.MONEY_PER_DAY: 86_400.0, BudgetUnit.MONEY_PER_MONTH: 31 * 86_400.0}
"""Period (s) of budgets of money; the longest for months, so that a share never exceeds the budget."""


def full_rate(budget: Budget) -> float:
    """Return the rate (units per second) that uses a budget up evenly; the limit itself for concurrent requests."""
    if budget.unit is BudgetUnit.CONCURRENT_REQUESTS:
        return budget.limit
    return max(MIN_AMOUNT, budget.limit / _SECONDS.get(budget.unit, 60.0))


def rate_without_leader(budget: Budget, last: float, agents: int, ended_s: float, loss: tuple[float, OnLoss]) -> float:
    """Return the rate (units per second) of a budget at an agent without a leader; the number for concurrent requests.

    Args:
        budget: the whole budget.
        last: rate of the last lease.
        agents: agents that the budget covers, as last known.
        ended_s: time (s) since the end of the lease.
        loss: time (s) for which `last` continues, and the rule that applies afterwards.
    """
    hold_s, rule = loss
    whole = full_rate(budget)
    if ended_s < hold_s or rule is OnLoss.KEEP:
        return min(last, whole)
    if rule is OnLoss.REFUSE:
        return 0.0
    share = whole / max(1, agents)
    return max(1.0, share) if budget.unit is BudgetUnit.CONCURRENT_REQUESTS else share
