"""Metrics of the leader's division of budgets. None is by tenant, so their number is bounded."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock.tenancy.fleet_budgets import BudgetCounts, FleetBudgets

EXCHANGE_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
"""Upper bounds (s) of the buckets of an exchange."""


class BudgetMetrics:
    """Metrics of the budgets that agents use."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._in_use = Gauge(
            "penstock_budgets_in_use", "Budgets that the leader divides among agents.", registry=registry
        )
        self._leases = Counter(
            "penstock_budget_leases", "Leases of budgets that the leader gave to agents.", registry=registry
        )
        self._short = Counter(
            "penstock_budget_leases_short",
            "Answers that left an agent with demand without the amount of a usual request: the budget was used up, or"
            " was moving between agents.",
            registry=registry,
        )
        self._overshoot = Gauge(
            "penstock_budget_overshoot_ratio",
            "Largest part by which a budget was used beyond its burst, day or month in the last seconds: requests used"
            " more than their estimates, or agents had no leader. It is withheld from later leases.",
            registry=registry,
        )
        self.exchange_duration = Histogram(
            "penstock_budget_exchange_duration_seconds",
            "Seconds of work of the leader for one exchange of budgets with an agent.",
            buckets=EXCHANGE_BUCKETS_S,
            registry=registry,
        )
        self._shown = BudgetCounts()

    def show(self, fleet: FleetBudgets) -> None:
        """Add what was counted since the last call."""
        self._in_use.set(len(fleet.budgets))
        counts, shown = fleet.counts, self._shown
        if counts.leases < shown.leases or counts.short < shown.short:
            shown = BudgetCounts()
        self._leases.inc(counts.leases - shown.leases)
        self._short.inc(counts.short - shown.short)
        self._shown = BudgetCounts(counts.leases, counts.short)
        overshoot = 0.0
        for budget in fleet.budgets.values():
            overshoot = max(overshoot, budget.overdrawn / budget.whole)
            budget.overdrawn = 0.0
        self._overshoot.set(overshoot)

    def clear(self) -> None:
        """Show no budgets, because another control plane leads."""
        self._in_use.set(0)
        self._overshoot.set(0)
        self._shown = BudgetCounts()
