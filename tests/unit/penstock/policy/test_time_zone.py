"""Local times of a zone: changes of clocks skip times and repeat times."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.time_zone import ClockChange, TimeZone, local_s, moment, wall_clock_s

HOUR_S = 3600
SPRING, AUTUMN = 1_774_746_000, 1_792_890_000  # 2026-03-29 and 2026-10-25, 1:00 UTC
ZONE = TimeZone((ClockChange(0, HOUR_S), ClockChange(SPRING, 2 * HOUR_S), ClockChange(AUTUMN, HOUR_S)))


@given(st.integers(SPRING - 90 * 86_400, AUTUMN + 90 * 86_400))
def test_local_times_are_those_of_berlin(at: int) -> None:
    shown = datetime.fromtimestamp(at, ZoneInfo("Europe/Berlin")).replace(tzinfo=UTC).timestamp()
    assert local_s(ZONE, at) == shown
    is_repeated = AUTUMN - HOUR_S <= at < AUTUMN + HOUR_S
    assert moment(ZONE, shown) == (at - HOUR_S if is_repeated and at >= AUTUMN else at)


def test_before_the_first_change_its_offset_applies() -> None:
    assert local_s(ZONE, -10.0) == HOUR_S - 10.0
    assert moment(ZONE, HOUR_S - 10.0) == -10.0


@pytest.mark.parametrize(
    ("shown", "at"),
    [
        ("2026-03-29T01:59", SPRING - 60),
        ("2026-03-29T02:00", SPRING),  # skipped: it moves by an hour
        ("2026-03-29T02:59", SPRING + 3540),
        ("2026-03-29T03:00", SPRING),
        ("2026-10-25T01:59", AUTUMN - HOUR_S - 60),
        ("2026-10-25T02:00", AUTUMN - HOUR_S),  # occurs twice: the first one
        ("2026-10-25T02:59", AUTUMN - 60),
        ("2026-10-25T03:00Z", AUTUMN + HOUR_S),
    ],
)
def test_the_moment_of_a_local_time(shown: str, at: int) -> None:
    assert moment(ZONE, wall_clock_s(shown)) == at


def test_a_text_shows_a_time_whatever_the_zone_of_the_host() -> None:
    assert wall_clock_s("1970-01-02T00:01") == wall_clock_s("1970-01-02T00:01Z") == 86_460.0
    with pytest.raises(ValueError, match=r"^is not a valid date and time$"):
        wall_clock_s("2026-02-30T00:00")
