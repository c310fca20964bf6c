"""Finds maintenance windows that together leave a residency class without any region."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from penstock.overrides.maintenance import PERIOD_S, Occurrence, occurrences
from penstock.policy.policy import MaintenanceWindow, Policy, Recurrence
from penstock.policy.residency import ResidencyClass
from penstock.policy.time_zone import local_s

DRAINED_ON = "%Y-%m-%d at %H:%M UTC"


def window_warnings(policy: Policy, classes: Iterable[ResidencyClass]) -> Iterator[str]:
    """One warning per residency class and set of windows that empty the class together, with the first occurrence.

    The set of open windows grows only when a window begins. Once all recurring windows have begun, every week is equal
    to the next until a clock change. It therefore suffices to check the beginnings around each non-recurring window,
    those of one week after the last recurring window has begun, and those of one week after each distinct kind of
    clock change.
    """
    known = sorted(classes, key=lambda one: (len(one.regions), one.name))
    told: set[tuple[str, frozenset[str]]] = set()
    for at in _beginnings(policy):
        open_now = [
            one for window in policy.maintenance for one in occurrences(policy, window, at, at) if at < one.ends_at
        ]
        for residency in known:
            emptying = [one for one in open_now if one.window.regions & residency.regions]
            covered = frozenset[str]().union(*(one.window.regions for one in emptying))
            names = frozenset(one.window.name for one in emptying)
            if residency.regions <= covered and (residency.name, names) not in told:
                told.add((residency.name, names))
                yield _message(residency, emptying, at)


def _beginnings(policy: Policy) -> list[float]:
    """The times to check (Unix time, in seconds): those at which another window may open."""
    recurring = [one for one in policy.maintenance if one.recurrence is not Recurrence.NEVER]
    spans = [
        (one.starts_at - one.lead_s, one.starts_at + one.duration_s)
        for one in policy.maintenance
        if one.recurrence is Recurrence.NEVER
    ]
    if recurring:
        settled_at = max(one.starts_at for one in recurring)
        spans += [(at, at + PERIOD_S[Recurrence.WEEKLY]) for at in (settled_at, *_clock_changes(policy, settled_at))]
    found = {
        one.drains_at
        for since, until in spans
        for window in policy.maintenance
        for one in occurrences(policy, window, since, until)
    }
    return sorted(found)


def _clock_changes(policy: Policy, since: float) -> Iterator[float]:
    """The times (Unix time, in seconds) of the first clock change of each kind in the zones that windows use.

    Two changes are of one kind if every zone changes between the same offsets.
    """
    zones = list(policy.time_zones.values())
    known: set[tuple[tuple[float, ...], tuple[float, ...]]] = set()
    for at in sorted({change.at for zone in zones for change in zone.changes if change.at > since}):
        before, after = (tuple(local_s(zone, now) - now for zone in zones) for now in (at - 1.0, float(at)))
        if (before, after) not in known:
            known.add((before, after))
            yield at


def _message(residency: ResidencyClass, emptying: list[Occurrence], at: float) -> str:
    windows = " and ".join(_cite(one.window) for one in emptying)
    when = datetime.fromtimestamp(at, UTC).strftime(DRAINED_ON)
    verb = "empties" if len(emptying) == 1 else "empty"
    return (
        f"maintenance: {windows} {verb} all regions of residency class {residency.name}, such as on {when};"
        " its requests stay in them as the last resort"
    )


def _cite(window: MaintenanceWindow) -> str:
    return f"window {window.name} ({window.source})" if window.source else f"window {window.name}"
