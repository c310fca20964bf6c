"""Service objectives of all tenants in one month: kept or missed, and how much of the error budget was used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Final

import msgspec

from control_plane.usage.statement import AttainedObjective, answered, attained, missing_of_month
from control_plane.usage.usage_request import Dimension, UsageAnswer, UsageRow

QUESTIONS: Final = (
    (Dimension.TENANT, Dimension.MODEL, Dimension.OBJECTIVE),
    (Dimension.TENANT, Dimension.OUTCOME),
)
"""The dimensions of the questions from whose answers a report is made, in this order."""

_LEAST_PART: Final = 1e-10
"""Smallest part (0-1) of the requests that an objective permits to miss it."""


class TenantObjective(msgspec.Struct, frozen=True):
    """One objective of one tenant's requests for a model."""

    tenant: str
    model: str
    objective: str
    """What responses within the objective do, such as `begin within 1.5 s`."""
    requests: int
    within: int
    target_share: float
    share: float
    """Share (0-1) of requests that succeeded within the limit."""
    used_budget: float
    """Requests that missed the objective, as a share of those that may miss it; above 1, the objective is missed."""
    is_kept: bool
    answered_share: float | None
    """Share (0-1) of all the tenant's requests that were answered, of those that count; null without one."""


class SlaReport(msgspec.Struct, frozen=True):
    """The objectives of a month, missed ones first, then by tenant and model."""

    month: str
    objectives: tuple[TenantObjective, ...]
    missing: tuple[str, ...]
    """What the counts lack."""


def make_report(month: str, answers: Sequence[UsageAnswer], today: date) -> SlaReport:
    """Return the report from the answers to QUESTIONS for one month."""
    by_objective, by_outcome = answers
    outcomes = _by_tenant(by_outcome.rows)
    rows = [
        _row(tenant, each, answered(outcomes.get(tenant, ())))
        for tenant, of_tenant in _by_tenant(by_objective.rows).items()
        for each in attained(of_tenant)
    ]
    rows.sort(key=lambda row: (row.is_kept, row.tenant, row.model, row.objective))
    return SlaReport(month, tuple(rows), missing_of_month(answers, today))


def _row(tenant: str, each: AttainedObjective, answered_share: float | None) -> TenantObjective:
    # A share above 0.9999999999 is 1 in the records.
    may_miss = max(_LEAST_PART, 1.0 - each.target_share) * each.requests
    used = (each.requests - each.within) / may_miss
    counts = each.requests, each.within, each.target_share, each.share
    return TenantObjective(tenant, each.model, each.text, *counts, used, each.is_kept, answered_share)


def _by_tenant(rows: Iterable[UsageRow]) -> dict[str, list[UsageRow]]:
    found: dict[str, list[UsageRow]] = {}
    for row in rows:
        found.setdefault(row.group[Dimension.TENANT.value], []).append(row)
    return found
