"""Drills that are due by the policy's schedule."""

from __future__ import annotations

from penstock.drills.drill_state import Drill, DrillRequest
from penstock.overrides.maintenance import beginnings
from penstock.policy.kinds.operations import DrillSchedule
from penstock.policy.policy import Policy

TRY_FOR_S = 300.0
"""Time (s) for which an occurrence that may not begin yet is retried; after that it is recorded as refused."""

DUE_FOR_S = 600.0
"""Time (s) after which an occurrence is skipped if no control plane led, or another drill was under way."""


def due(policy: Policy, newest: Drill | None, now: float) -> DrillRequest | None:
    """Returns the first scheduled drill whose occurrence has come and was not handled; None if there is none.

    Args:
        newest: the newest drill, which contains the handled occurrences; None without one.
        now: Unix time, in seconds.
    """
    handled = newest.handled if newest is not None else {}
    for schedule in policy.drills:
        occurrence = _last_occurrence(policy, schedule, now)
        if occurrence is not None and handled.get(schedule.name, 0.0) < occurrence:
            return DrillRequest(
                schedule.exercise,
                schedule.region,
                schedule.hold_s,
                schedule.max_burn_rate,
                reason=f"scheduled drill {schedule.name}",
                author=f"policy {schedule.source}" if schedule.source else "policy",
                schedule=schedule.name,
                occurrence=occurrence,
            )
    return None


def final_refusal(request: DrillRequest, why: str | None, now: float) -> str | None:
    """Returns the reason for which a scheduled drill is recorded as refused; None while it may still begin."""
    if now - request.occurrence < TRY_FOR_S:
        return None
    return why or f"it could not begin within {TRY_FOR_S:g} s"


def handled_after(policy: Policy, newest: Drill | None, request: DrillRequest) -> dict[str, float]:
    """Returns the handled occurrences after `request` has begun or was refused; removed schedules are omitted."""
    names = {schedule.name for schedule in policy.drills}
    before = newest.handled if newest is not None else {}
    kept = {name: at for name, at in before.items() if name in names}
    return {**kept, request.schedule: request.occurrence} if request.schedule else kept


def _last_occurrence(policy: Policy, schedule: DrillSchedule, now: float) -> float | None:
    """Returns the occurrence (Unix time, s) that may begin at `now`."""
    for begins_at in beginnings(policy, schedule, now - DUE_FOR_S):
        if begins_at > now:
            return None
        if now - begins_at < DUE_FOR_S:
            return begins_at
    return None
