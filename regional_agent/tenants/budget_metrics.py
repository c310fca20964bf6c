"""Metrics of budgets: refusals by unit, and the tenants whose budgets are nearly used up."""

from __future__ import annotations

from heapq import nlargest
from operator import itemgetter
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock.policy.kinds.budgets import BudgetUnit
from regional_agent.tenants.tenant_budgets import TenantBudgets

MAX_NAMED: Final = 20
"""Maximum number of budgets with series of their own: those of which the largest part is used."""

NAMED_FROM: Final = 0.5
"""Minimum part (0-1) of a budget that is used for it to have a series."""

NEAR: Final = 0.9
"""Part (0-1) of a budget above which its tenant is near the limit."""


class BudgetMetrics:
    """The metrics of one agent's budgets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create the metrics at zero."""
        self._refusals = Counter(
            "penstock_agent_budget_refusals",
            "Requests refused because a budget of the tenant or key is used up, by unit of the budget.",
            ("unit",),
            registry=registry,
        )
        self._counted = dict.fromkeys(BudgetUnit, 0)
        for unit in BudgetUnit:
            self._refusals.labels(unit.value)
        self._used = Gauge(
            "penstock_agent_budget_used_ratio",
            "Part (0-1) of a budget that is used, as far as this agent knows; of the 20 budgets with the largest part,"
            " if at least half is used.",
            ("tenant", "unit"),
            registry=registry,
        )
        self._near = Gauge(
            "penstock_agent_tenants_near_limit",
            "Tenants with a budget of which at least 90 % is used, as far as this agent knows.",
            registry=registry,
        )
        self._lost = Gauge(
            "penstock_agent_budgets_without_leader",
            "1 while no leader renews the leases of budgets, so that this agent continues at the last rates; else 0.",
            registry=registry,
        )

    def update(self, budgets: TenantBudgets, now: float) -> None:
        """Set the metrics to the state at `now` (monotonic, s)."""
        for unit, count in budgets.refused.items():
            self._refusals.labels(unit.value).inc(count - self._counted[unit])
            self._counted[unit] = count
        self._lost.set(budgets.is_without_leader)
        used = budgets.fullest(NAMED_FROM, now)
        self._near.set(len({key.tenant for ratio, key in used if ratio >= NEAR}))
        self._used.clear()
        named: dict[tuple[str, str], float] = {}
        for ratio, key in nlargest(MAX_NAMED, used, key=itemgetter(0)):
            named.setdefault((key.tenant, key.unit.value), ratio)
        for labels, ratio in named.items():
            self._used.labels(*labels).set(ratio)
