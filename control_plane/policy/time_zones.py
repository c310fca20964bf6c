"""Rules of IANA time zones, from the tzdata package.

The operating system's data is not used: it differs between machines, slim containers have none, and the rules are part
of the policy and its digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from adapters.error_text import suggest
from control_plane.policy.bundle_errors import PolicyError
from control_plane.policy.documents import Document
from penstock.policy.time_zone import ClockChange, TimeZone, local_s, moment

YEARS = range(2000, 2100)
"""The years that documents may contain; afterwards the last offset stays in force."""

_STEP_S = 2 * 86_400
"""Sampling interval (s); no zone changes its offset twice within it."""

_FIRST, _END = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (YEARS.start, YEARS.stop))


def time_zone(name: str, since: float) -> TimeZone:
    """Return the rules of a known zone.

    Args:
        since: Unix time (s) from which rules are needed.
    """
    changes = _changes(name)
    passed = sum(1 for change in changes if change.at <= since)
    return TimeZone(changes[max(passed - 1, 0) :])


def moment_of(shown_s: float, zone: str | None) -> float:
    """Return the time `shown_s` of a clock in a known zone, or in UTC without one, as Unix time (s)."""
    return shown_s if zone is None else moment(TimeZone(_changes(zone)), shown_s)


def clock_errors(document: Document, shown_s: float, zone: str | None) -> Iterable[PolicyError]:
    """Return the errors of a document's `starts_at` and `time_zone`.

    Args:
        shown_s: the time (s) that `starts_at` shows.
    """
    is_in_utc = document.content["starts_at"].endswith("Z")
    if zone is None:
        if not is_in_utc:
            yield document.error(("starts_at",), "has no time zone", "append Z for UTC, or write time_zone")
        return
    if is_in_utc:
        remedy = "write it in local time, without the Z, or remove time_zone"
        yield document.error(("starts_at",), "is in UTC, but time_zone is set", remedy)
        return
    if unknown := list(zone_errors(document, "time_zone", zone)):
        yield from unknown
        return
    rules = TimeZone(_changes(zone))
    found_s = local_s(rules, moment(rules, shown_s))
    if found_s != shown_s:
        after = datetime.fromtimestamp(found_s, UTC).strftime("%H:%M")
        problem = f"this local time does not exist in {zone}: clocks are put forward then"
        yield document.error(("starts_at",), problem, f"write a time that exists, such as {after}")


def zone_errors(document: Document, field: str, zone: str | None) -> Iterable[PolicyError]:
    """Return the error of a field with the name of a time zone that does not exist."""
    if zone is not None and zone not in _names():
        remedy = suggest(zone, _names(), "use a name of the IANA time zone database, such as Europe/Berlin")
        yield document.error((field,), f"there is no time zone {zone}", remedy)


@cache
def _names() -> frozenset[str]:
    return frozenset((files("tzdata") / "zones").read_text().split())


@cache
def _changes(name: str) -> tuple[ClockChange, ...]:
    """Return a known zone's initial offset and every change of it in YEARS."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        zone = ZoneInfo.from_file(file, key=name)
    found = [ClockChange(_FIRST, _offset_s(zone, _FIRST))]
    for at in range(_FIRST, _END, _STEP_S):
        if _offset_s(zone, at + _STEP_S) != found[-1].offset_s:
            found.append(_change_between(zone, at, at + _STEP_S))
    return tuple(found)


def _change_between(zone: ZoneInfo, before: int, after: int) -> ClockChange:
    """Return the only change between two points in Unix time (s)."""
    offset_s = _offset_s(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset_s(zone, middle) == offset_s:
            before = middle
        else:
            after = middle
    return ClockChange(after, _offset_s(zone, after))


def _offset_s(zone: ZoneInfo, at: int) -> int:
    offset = datetime.fromtimestamp(at, zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())
