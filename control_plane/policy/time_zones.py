"""Names of IANA time zones to what their clocks show, from the data that this release was installed with.

The machine's own data is not asked: it differs between machines, a slim container has none, and whatever is read here
becomes part of the policy and its digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from control_plane.policy.bundle_errors import PolicyError, suggest
from control_plane.policy.documents import Document
from penstock.policy.time_zone import ClockChange, TimeZone, local_s, moment

YEARS = range(2000, 2100)
"""Every year that a document may write; after them clocks stay as they are at their end."""

_STEP_S = 2 * 86_400
"""No zone changes its clocks twice within this time (s)."""

_FIRST, _END = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (YEARS.start, YEARS.stop))
_EPOCH = datetime(1970, 1, 1)


def time_zone(name: str, since: float) -> TimeZone:
    """What the clocks of a zone that is known show.

    Args:
        since: the first moment (Unix time, s) that matters.
    """
    changes = _changes(name)
    passed = sum(1 for change in changes if change.at <= since)
    return TimeZone(changes[max(passed - 1, 0) :])


def moment_of(starts_at: str, zone: str | None) -> float:
    """The moment (Unix time, s) that a document writes, by the clocks of a zone that is known; None for UTC."""
    if zone is None:
        return datetime.fromisoformat(starts_at).timestamp()
    return moment(TimeZone(_changes(zone)), _shown_s(starts_at))


def clock_errors(document: Document, starts_at: str, zone: str | None) -> Iterable[PolicyError]:
    """What is wrong with the time that a document writes by the clocks of the zone that it names."""
    if zone is None:
        return
    if zone not in _names():
        remedy = suggest(zone, _names(), "use a name of the IANA time zone database, such as Europe/Berlin")
        yield document.error(("time_zone",), f"there is no time zone {zone}", remedy)
        return
    rules = TimeZone(_changes(zone))
    shown_s = _shown_s(starts_at)
    found_s = local_s(rules, moment(rules, shown_s))
    if found_s != shown_s:
        after = (_EPOCH + timedelta(seconds=found_s)).strftime("%H:%M")
        problem = f"clocks of {zone} never show this: they are put forward then"
        yield document.error(("starts_at",), problem, f"write a time that they show, such as {after}")


def _shown_s(starts_at: str) -> float:
    return (datetime.fromisoformat(starts_at) - _EPOCH).total_seconds()


@cache
def _names() -> frozenset[str]:
    return frozenset((files("tzdata") / "zones").read_text().split())


@cache
def _changes(name: str) -> tuple[ClockChange, ...]:
    """Every change of a known zone's clocks in YEARS, after the offset that it begins with."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        zone = ZoneInfo.from_file(file, key=name)
    found = [ClockChange(_FIRST, _offset_s(zone, _FIRST))]
    for at in range(_FIRST, _END, _STEP_S):
        if _offset_s(zone, at + _STEP_S) != found[-1].offset_s:
            found.append(_change_between(zone, at, at + _STEP_S))
    return tuple(found)


def _change_between(zone: ZoneInfo, before: int, after: int) -> ClockChange:
    """The only change between two moments (Unix time, s)."""
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
