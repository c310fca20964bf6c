"""Metrics of the leader's division of budgets. None is by tenant, so their number is bounded."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock.tenancy.fleet_budgets import FleetBudgets


class BudgetMetrics:
    """Metrics of the budgets that agents use."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._short = Counter(
            "penstock_budget_leases_short",
            "Answers that left an agent with demand without the amount of a usual request: the budget was used up, or"
            " was moving between agents.",
            registry=registry,
        )
        self._overshoot = Gauge(
            "penstock_budget_overshoot_ratio",
            "Largest part by which a budget was used beyond its burst, day or month in the last seconds, with what"
            " running requests reserve: they need more than their estimates, or agents had no leader. It is withheld"
            " from later leases.",
            registry=registry,
        )
        self._shown = 0

    def show(self, fleet: FleetBudgets) -> None:
        """Add what was counted since the last call."""
        shown = self._shown if self._shown <= fleet.short else 0
        self._short.inc(fleet.short - shown)
        self._shown = fleet.short
        overshoot = 0.0
        for budget in fleet.budgets.values():
            overshoot = max(overshoot, budget.overdrawn / budget.whole)
            budget.overdrawn = 0.0
        self._overshoot.set(overshoot)

    def clear(self) -> None:
        """Show no budgets, because another control plane leads."""
        self._overshoot.set(0)
        self._shown = 0
