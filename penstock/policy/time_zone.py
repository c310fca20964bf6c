"""A time zone's offsets from UTC, and the times at which they change.

The rules are compiled into the policy, so that every process computes the same times, regardless of its own time zone
data. A local time is interpreted as in iCalendar (RFC 5545, section 3.3.5): an ambiguous time is the first of the two,
and a skipped time is interpreted with the offset before the change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec


class ClockChange(NamedTuple):
    """A change of the offset of a time zone."""

    at: int
    """Unix time (s) of the change."""
    offset_s: int
    """Offset (s) from UTC after the change."""


class TimeZone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clock changes of one zone."""

    changes: tuple[ClockChange, ...]
    """Changes in order, at least one; the offset of the first change also applies before it."""


def local_s(zone: TimeZone, at: float) -> float:
    """The zone's local time at a Unix time (s), in seconds since 1970-01-01 00:00 local time."""
    return at + _of(zone.changes, bisect_right(zone.changes, at, key=_at))


def moment(zone: TimeZone, shown_s: float) -> float:
    """The Unix time (s) of a local time, which is given as by `local_s`."""
    changes = zone.changes

    def past_s(number: int) -> int:
        """The first local time after the skipped or repeated interval of a change."""
        return changes[number].at + max(changes[number - 1].offset_s, changes[number].offset_s)

    return shown_s - _of(changes, 1 + bisect_right(range(1, len(changes)), shown_s, key=past_s))


def wall_clock_s(text: str) -> float:
    """The time that a text (RFC 3339, without offset or with Z) shows, in seconds since 1970-01-01 00:00 by that clock.

    Raises:
        ValueError: the calendar has no such date or time.
    """
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ValueError("is not a valid date and time") from None


def _of(changes: Sequence[ClockChange], passed: int) -> int:
    """The offset (s) after this number of changes."""
    return changes[max(passed - 1, 0)].offset_s


def _at(change: ClockChange) -> int:
    return change.at
