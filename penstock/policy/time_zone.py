"""A time zone's clocks as far as policy needs them: by how much they differ from UTC, and when that changes.

The rules are compiled into the policy, so that every process computes the same times, whatever time zone data it has. A
time is taken as iCalendar has it (RFC 5545, section 3.3.5): one that comes twice is the first of the two, and one that
is left out is as far after the change as it would have been without it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class ClockChange(NamedTuple):
    """A moment from which on the clocks of a zone show another time."""

    at: int
    """Unix time (s)."""
    offset_s: int
    """How far (s) they are ahead of UTC from then on."""


class TimeZone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the clocks of one zone show."""

    changes: tuple[ClockChange, ...]
    """In order, at least one; before the first its offset holds too."""


def local_s(zone: TimeZone, at: float) -> float:
    """What the zone's clocks show at a moment (Unix time, s), in the seconds since 1970 that they would count."""
    return at + _of(zone.changes, bisect_right(zone.changes, at, key=_at))


def moment(zone: TimeZone, shown_s: float) -> float:
    """The moment (Unix time, s) at which the zone's clocks show a time, given as `local_s` gives it."""
    changes = zone.changes

    def past_s(number: int) -> int:
        """The first time on the clock past what a change leaves out or brings twice."""
        return changes[number].at + max(changes[number - 1].offset_s, changes[number].offset_s)

    return shown_s - _of(changes, 1 + bisect_right(range(1, len(changes)), shown_s, key=past_s))


def _of(changes: Sequence[ClockChange], passed: int) -> int:
    """The offset (s) once so many changes have been."""
    return changes[max(passed - 1, 0)].offset_s


def _at(change: ClockChange) -> int:
    return change.at
