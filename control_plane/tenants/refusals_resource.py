"""Why requests of a tenant were refused, by the newest reports of the agents."""

from __future__ import annotations

import msgspec

from penstock.fleet.snapshot import Snapshot
from penstock.policy.kinds.budgets import BudgetScope, BudgetUnit


class RefusalView(msgspec.Struct, frozen=True):
    """The refusals of one agent because of one budget. Times are Unix times (s)."""

    region: str
    agent: str
    unit: BudgetUnit
    limit: float
    scope: BudgetScope
    key_id: str
    """Identifier of the key that the budget limits; empty for a budget of the tenant."""
    count: int
    """Refusals since `since`."""
    since: float
    last_at: float
    needed: float
    """Amount that the last refused request needed, by its estimate."""
    left: float
    """Amount that was left, as far as the agent knew."""


class OtherRefusalView(msgspec.Struct, frozen=True):
    """Requests that one agent refused or ended for one other reason. Times are Unix times (s)."""

    region: str
    agent: str
    reason: str
    """A code of docs/errors.md."""
    count: int
    """Requests since `since`."""
    since: float
    last_at: float


class RefusalList(msgspec.Struct, frozen=True):
    """The refusals of one tenant."""

    items: tuple[RefusalView, ...]
    """Because of budgets."""
    others: tuple[OtherRefusalView, ...] = ()
    """For other reasons."""


def refusals_of(snapshot: Snapshot, tenant: str) -> RefusalList:
    """Return the refusals of a tenant, the newest first."""
    found = [
        RefusalView(
            held.report.region,
            held.report.agent,
            each.unit,
            each.limit,
            each.scope,
            each.key_id,
            each.count,
            each.since,
            each.last_at,
            each.needed,
            each.left,
        )
        for held in snapshot.agents.values()
        for each in held.report.budget_refusals
        if each.tenant == tenant
    ]
    others = [
        OtherRefusalView(held.report.region, held.report.agent, each.reason, each.count, each.since, each.last_at)
        for held in snapshot.agents.values()
        for each in held.report.other_refusals
        if each.tenant == tenant
    ]
    return RefusalList(
        tuple(sorted(found, key=lambda each: -each.last_at)), tuple(sorted(others, key=lambda each: -each.last_at))
    )
