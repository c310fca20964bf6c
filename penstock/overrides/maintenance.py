"""Maintenance windows as drains, derived from the policy and the time; no operator sets them.

The windows of a fleet are few and short, so evaluating each occurrence near a moment is cheap enough for every tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from math import floor

import msgspec

from penstock.overrides.overrides import Override, OverrideKind
from penstock.policy.kinds.operations import PERIOD_S, DrillSchedule, MaintenanceWindow
from penstock.policy.policy import Policy
from penstock.policy.time_zone import local_s, moment

MAX_SHIFT_S = 26 * 3600.0
"""Maximum difference (s) between the offsets of one time zone."""

WATCHED_AHEAD_S = 8 * 86_400.0
"""Maximum time (s) ahead of which recurring windows are evaluated; each occurs within this time."""


class Occurrence(msgspec.Struct, frozen=True):
    """One occurrence of a window, including the drain before it."""

    window: MaintenanceWindow
    drains_at: float
    """Unix time (s) at which the drain begins."""
    ends_at: float
    """Unix time (s) at which the window ends."""


def occurrences(policy: Policy, window: MaintenanceWindow, since: float, until: float) -> Iterator[Occurrence]:
    """Yields each occurrence of a window that drains or is open between two moments (Unix time, s), in order."""
    for begins_at in beginnings(policy, window, since - window.duration_s):
        found = Occurrence(window, begins_at - window.lead_s, begins_at + window.duration_s)
        if found.drains_at > until:
            return
        if found.ends_at >= since:
            yield found


def beginnings(policy: Policy, recurring: MaintenanceWindow | DrillSchedule, since: float) -> Iterator[float]:
    """Yields the beginnings (Unix time, s) of a window or drill, starting with one before `since`, or the first."""
    period_s = PERIOD_S.get(recurring.recurrence)
    if period_s is None:
        yield recurring.starts_at
        return
    zone = policy.time_zones[recurring.time_zone] if policy.time_zones and recurring.time_zone else None
    number = max(0, floor((since - recurring.starts_at - MAX_SHIFT_S) / period_s))
    first = recurring.starts_at if zone is None else local_s(zone, recurring.starts_at)
    while True:
        local = first + number * period_s
        yield local if zone is None else moment(zone, local)
        number += 1


def windows(policy: Policy, now: float) -> tuple[Override, ...]:
    """Returns the drains of the policy's windows at `now`, including those whose regions are still ramping back."""
    since = now - policy.failover.failback_ramp_s
    return tuple(
        _drain(occurrence, region)
        for window in policy.maintenance
        for occurrence in occurrences(policy, window, since, now)
        for region in sorted(window.regions & policy.regions.keys())
    )


def changes(policy: Policy, region: str, now: float, until: float) -> tuple[float, ...]:
    """Returns the moments (Unix time, s) at which a window begins to drain any region, or ends that of `region`; of
    recurring windows, at most WATCHED_AHEAD_S after `now`."""
    near = min(until, now + WATCHED_AHEAD_S)
    found = {
        at
        for window in policy.maintenance
        for occurrence in occurrences(policy, window, now, near if window.recurrence in PERIOD_S else until)
        for at in (occurrence.drains_at, *([occurrence.ends_at] if region in window.regions else []))
    }
    return tuple(sorted(at for at in found if now <= at < until))


def _drain(occurrence: Occurrence, region: str) -> Override:
    window = occurrence.window
    day = datetime.fromtimestamp(occurrence.ends_at - window.duration_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
    return Override(
        id=f"window-{window.name}-{day}-{region}",
        kind=OverrideKind.DRAIN,
        reason=f"maintenance window {window.name}",
        author=f"policy {window.source}" if window.source else "policy",
        begins_at=occurrence.drains_at,
        region=region,
        expires_at=occurrence.ends_at,
    )
