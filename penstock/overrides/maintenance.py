"""Maintenance windows as overrides: drains that follow from the policy and the moment, and that nobody has to set.

The windows of a fleet are few and short, so looking at each occurrence near a moment is cheap enough for every tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from math import floor

import msgspec

from penstock.overrides.overrides import Override, OverrideKind
from penstock.policy.policy import MaintenanceWindow, Policy, Recurrence
from penstock.policy.time_zone import local_s, moment

PERIOD_S = {Recurrence.DAILY: 86_400.0, Recurrence.WEEKLY: 7 * 86_400.0}
"""Time (s) from one occurrence to the next on the clocks that a window recurs by: UTC has no days of another length."""

MAX_SHIFT_S = 26 * 3600.0
"""No zone's clocks are further than this (s) from where they once were."""

WATCHED_AHEAD_S = 8 * 86_400.0
"""How far ahead (s) windows are looked for: every one that recurs comes within it."""


class Occurrence(msgspec.Struct, frozen=True):
    """One time that a window is open, the draining before it included."""

    window: MaintenanceWindow
    drains_at: float
    """Unix time (s)."""
    ends_at: float
    """Unix time (s)."""


def occurrences(policy: Policy, window: MaintenanceWindow, since: float, until: float) -> Iterator[Occurrence]:
    """Each time that a window of a policy drains or is open between two moments (Unix time, s), in order."""
    for begins_at in _beginnings(policy, window, since):
        found = Occurrence(window, begins_at - window.lead_s, begins_at + window.duration_s)
        if found.drains_at > until:
            return
        if found.ends_at >= since:
            yield found


def _beginnings(policy: Policy, window: MaintenanceWindow, since: float) -> Iterator[float]:
    """When (Unix time, s) a window begins, from one that ends before `since` on, or from the first."""
    period_s = PERIOD_S.get(window.recurrence)
    if period_s is None:
        yield window.starts_at
        return
    zone = policy.time_zones[window.time_zone] if policy.time_zones and window.time_zone else None
    number = max(0, floor((since - window.starts_at - window.duration_s - MAX_SHIFT_S) / period_s))
    first = window.starts_at if zone is None else local_s(zone, window.starts_at)
    while True:
        shown = first + number * period_s
        yield shown if zone is None else moment(zone, shown)
        number += 1


def windows(policy: Policy, now: float) -> tuple[Override, ...]:
    """The drains that the policy's windows ask for now, and those whose regions are still on their way back."""
    since = now - policy.failover.failback_ramp_s
    return tuple(
        _drain(one, region)
        for window in policy.maintenance
        for one in occurrences(policy, window, since, now)
        for region in sorted(window.regions & policy.regions.keys())
    )


def openings(policy: Policy, now: float, until: float) -> tuple[float, ...]:
    """The moments (Unix time, s) between two at which some window begins to drain; bounded by WATCHED_AHEAD_S."""
    until = min(until, now + WATCHED_AHEAD_S)
    found = {one.drains_at for window in policy.maintenance for one in occurrences(policy, window, now, until)}
    return tuple(sorted(at for at in found if at >= now))


def _drain(one: Occurrence, region: str) -> Override:
    day = datetime.fromtimestamp(one.ends_at - one.window.duration_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
    return Override(
        id=f"window-{one.window.name}-{day}-{region}",
        kind=OverrideKind.DRAIN,
        reason=f"maintenance window {one.window.name}",
        author=f"policy {one.window.source}" if one.window.source else "policy",
        begins_at=one.drains_at,
        region=region,
        expires_at=one.ends_at,
    )
