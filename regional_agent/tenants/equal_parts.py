"""Budgets of agents that exchange nothing with a leader: each agent uses an equal part."""

from __future__ import annotations

from collections.abc import Callable

from penstock.policy.kinds.budgets import Budget
from penstock.tenancy.budget_lease import MONEY, BudgetKey, BudgetLease
from penstock.tenancy.without_leader import full_rate


class EqualParts:
    """Leases of equal parts, which never end and are never renewed."""

    def __init__(self, agents: Callable[[], int]) -> None:
        """`agents` returns the number of agents that share a budget."""
        self._agents = agents

    @property
    def agents(self) -> int:
        """Number of agents of the fleet, as last known."""
        return max(1, self._agents())

    def opening(self, key: BudgetKey, budget: Budget, now: float) -> BudgetLease:
        """Return the lease with which a new counter starts."""
        whole = budget.limit if key.unit in MONEY else budget.largest_burst
        rate = full_rate(budget)
        if key.unit == "concurrent_requests":
            rate = whole = max(1.0, budget.limit // self.agents)
            return BudgetLease(key, 0, whole, whole, rate, 0.0)
        return BudgetLease(key, 0, whole / self.agents, whole, rate / self.agents, 0.0)

    def ended_s(self, now: float) -> float | None:
        """Return that the leases ended long ago: equal parts refill by themselves."""
        return 1e9

    def wake(self) -> None:
        """Do nothing, since there is no exchange."""
