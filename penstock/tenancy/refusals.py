"""The newest refusals of tenants, because of budgets and for other reasons, for people: "why was I refused?"."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock.policy.kinds.budgets import BudgetScope, BudgetUnit
from penstock.tenancy.exceeded_budget import ExceededBudget

MAX_KEPT: Final = 1_000
"""Maximum number of budgets whose refusals an agent keeps, and of other reasons; the oldest are dropped first."""

MAX_REPORTED: Final = 50
"""Maximum number of each in a report to the leader: the newest."""

FORGET_S: Final = 3600.0
"""Time (s) after which refusals are forgotten."""

_Text = Annotated[str, Meta(max_length=256)]


class BudgetRefusals(msgspec.Struct, frozen=True, omit_defaults=True):
    """The refusals of one agent because of one budget. Times are Unix times (s)."""

    tenant: _Text
    unit: BudgetUnit
    limit: float
    scope: BudgetScope
    count: int
    """Refusals since `since`."""
    since: float
    last_at: float
    needed: float
    """Amount that the last refused request needed, by its estimate."""
    left: float
    """Amount that was left, as far as the agent knew."""
    key_id: _Text = ""
    """Identifier of the key that the budget limits; empty for a budget of the tenant."""


class RefusalLog:
    """The refusals of one agent, by budget."""

    __slots__ = ("_by_budget",)

    def __init__(self) -> None:
        """Create an empty log."""
        self._by_budget: dict[tuple[str, str, BudgetUnit, BudgetScope], BudgetRefusals] = {}

    def add(self, refused: ExceededBudget, wall: float) -> None:
        """Record a refusal at `wall` (Unix time, s)."""
        key = (refused.tenant, refused.key_id, refused.unit, refused.scope)
        before = self._by_budget.pop(key, None)
        if before is not None and wall - before.last_at > FORGET_S:
            before = None
        if len(self._by_budget) >= MAX_KEPT:
            del self._by_budget[next(iter(self._by_budget))]
        self._by_budget[key] = BudgetRefusals(
            refused.tenant,
            refused.unit,
            refused.limit,
            refused.scope,
            1 if before is None else before.count + 1,
            wall if before is None else before.since,
            wall,
            refused.needed,
            refused.left,
            refused.key_id,
        )

    def newest(self, wall: float, tenant: str | None = None, most: int = MAX_REPORTED) -> tuple[BudgetRefusals, ...]:
        """Return the refusals of the last hour, the newest first.

        Args:
            wall: Unix time (s).
            tenant: None for all tenants.
            most: maximum number of budgets.
        """
        found: list[BudgetRefusals] = []
        for refusals in reversed(self._by_budget.values()):
            if len(found) == most or wall - refusals.last_at > FORGET_S:
                break
            if tenant is None or refusals.tenant == tenant:
                found.append(refusals)
        return tuple(found)


class OtherRefusals(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests of one tenant that one agent did not serve to the end, for one reason. Times are Unix times (s)."""

    tenant: _Text
    reason: _Text
    """A code of docs/errors.md."""
    count: int
    """Requests since `since`."""
    since: float
    last_at: float


class OtherRefusalLog:
    """The refusals of one agent for reasons other than budgets."""

    __slots__ = ("_by_reason",)

    def __init__(self) -> None:
        """Create an empty log."""
        self._by_reason: dict[tuple[str, str], OtherRefusals] = {}

    def add(self, tenant: str, reason: str, wall: float) -> None:
        """Record a refusal at `wall` (Unix time, s)."""
        before = self._by_reason.pop((tenant, reason), None)
        if before is not None and wall - before.last_at > FORGET_S:
            before = None
        if len(self._by_reason) >= MAX_KEPT:
            del self._by_reason[next(iter(self._by_reason))]
        count, since = (1, wall) if before is None else (before.count + 1, before.since)
        self._by_reason[tenant, reason] = OtherRefusals(tenant, reason, count, since, wall)

    def newest(self, wall: float) -> tuple[OtherRefusals, ...]:
        """Return the refusals of the last hour, the newest first, at most MAX_REPORTED.

        Args:
            wall: Unix time (s).
        """
        found = [each for each in reversed(self._by_reason.values()) if wall - each.last_at <= FORGET_S]
        return tuple(found[:MAX_REPORTED])
