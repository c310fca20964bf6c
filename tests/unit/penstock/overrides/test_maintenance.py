"""Maintenance windows: the drains of a policy at a given time."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.policy.time_zones import time_zone
from penstock.overrides.maintenance import PERIOD_S, changes, occurrences, windows
from penstock.overrides.overrides import OverrideKind
from penstock.policy.kinds.operations import MaintenanceWindow, Recurrence
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.policy.policy import Policy
from penstock.policy.time_zone import ClockChange, TimeZone, local_s, moment
from tests.support.planet import policy

HOUR_S, DAY_S = 3600.0, 86_400.0
START = 1_800_000_000.0


def under(recurrence: Recurrence, **fields: float) -> Policy:
    plain = MaintenanceWindow("disks", frozenset({"eu-de"}), START, HOUR_S, recurrence, 600.0, "windows.yaml:3")
    window = msgspec.structs.replace(plain, **fields)
    return msgspec.structs.replace(policy(), maintenance=(window,), failover=Failover(failback_ramp_s=60.0))


SPRING, AUTUMN = 1_774_746_000, 1_792_890_000
"""When clocks in Berlin go from 02:00 to 03:00 in 2026, and from 03:00 to 02:00."""
BERLIN = TimeZone(tuple(ClockChange(*change) for change in ((0, 3600), (SPRING, 7200), (AUTUMN, 3600))))


def begin(shown: str, recurrence: Recurrence, since: float, until: float) -> list[str]:
    """The start (UTC) of a window whose first start is given in Berlin's local time."""
    starts_at = datetime.fromisoformat(f"{shown}+01:00").timestamp()
    window = MaintenanceWindow(
        "disks", frozenset({"eu-de"}), starts_at, HOUR_S, recurrence, 0.0, time_zone="Europe/Berlin"
    )
    under = msgspec.structs.replace(policy(), maintenance=(window,), time_zones={"Europe/Berlin": BERLIN})
    drain_times = [occurrence.drains_at for occurrence in occurrences(under, window, since, until)]
    return [datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M") for at in drain_times]


def draining(policy: Policy, now: float) -> bool:
    return any(override.holds(now) for override in windows(policy, now))


@pytest.mark.parametrize("recurrence", list(Recurrence))
def test_a_window_drains_from_its_lead_time_on_until_it_ends(recurrence: Recurrence) -> None:
    policy = under(recurrence)
    times = {START - 601: False, START - 600: True, START + 3599: True, START + 3600: False, START + 7200: False}
    assert {now: draining(policy, now) for now in times} == times


@pytest.mark.parametrize("recurrence", [Recurrence.DAILY, Recurrence.WEEKLY])
def test_a_window_recurs_at_the_same_time_and_not_before_its_start(recurrence: Recurrence) -> None:
    policy, period_s = under(recurrence), PERIOD_S[recurrence]
    for times in (1, 2, 1000):
        assert draining(policy, START + times * period_s - 600)
        assert not draining(policy, START + times * period_s - 601)
        assert not draining(policy, START + times * period_s + HOUR_S)
    assert not draining(policy, START - period_s + 10)


def test_a_window_that_does_not_recur_never_comes_again() -> None:
    assert not any(draining(under(Recurrence.NEVER), START + days * DAY_S) for days in range(1, 10))


def test_a_window_names_its_author_and_its_region_gets_the_ramp_afterwards() -> None:
    (override,) = windows(under(Recurrence.DAILY), START + HOUR_S + 30.0)
    assert (override.kind, override.region, override.author) == (OverrideKind.DRAIN, "eu-de", "policy windows.yaml:3")
    assert (override.begins_at, override.expires_at) == (START - 600, START + HOUR_S)
    assert override.weight(START + HOUR_S + 30.0, 60.0) == pytest.approx(0.5)
    assert windows(under(Recurrence.DAILY), START + HOUR_S + 61.0) == ()


def test_each_occurrence_has_an_id_of_its_own_that_every_control_plane_gives_it() -> None:
    first = windows(under(Recurrence.DAILY), START)
    assert first == windows(under(Recurrence.DAILY), START + 100.0)
    assert first[0].id != windows(under(Recurrence.DAILY), START + DAY_S)[0].id


def test_lead_times_longer_than_the_period_between_do_not_hide_a_window() -> None:
    policy = under(Recurrence.DAILY, lead_s=23 * HOUR_S)
    assert draining(policy, START + 2 * HOUR_S)


def test_changes_are_the_beginnings_within_the_given_time_and_the_ends_of_the_region() -> None:
    policy = under(Recurrence.DAILY)
    begins_at, ends_at = START + DAY_S - 600, START + HOUR_S
    assert changes(policy, "us-east", START, START + DAY_S) == (begins_at,)
    assert changes(policy, "eu-de", START, START + DAY_S) == (ends_at, begins_at)
    assert len(changes(policy, "us-east", START, float("inf"))) == 8
    assert len(changes(policy, "eu-de", START, float("inf"))) == 8 + 9, "the window that is open ends, too"
    assert changes(policy, "us-east", START, START + HOUR_S) == ()


def test_regions_that_the_policy_does_not_have_are_left_out() -> None:
    policy = under(Recurrence.DAILY)
    window = msgspec.structs.replace(policy.maintenance[0], regions=frozenset({"eu-de", "mars"}))
    assert len(windows(msgspec.structs.replace(policy, maintenance=(window,)), START)) == 1


def test_a_window_keeps_its_time_on_the_clock_when_clocks_change() -> None:
    around = SPRING - 10 * DAY_S, SPRING + 10 * DAY_S
    assert begin("2026-03-04T09:00", Recurrence.WEEKLY, *around) == ["03-25 08:00", "04-01 07:00"]
    around = AUTUMN - 1.5 * DAY_S, AUTUMN + 1.5 * DAY_S
    assert begin("2026-01-01T09:00", Recurrence.DAILY, *around) == ["10-24 07:00", "10-25 08:00", "10-26 08:00"]


def test_a_time_that_clocks_leave_out_is_as_long_after_the_change_and_one_that_comes_twice_is_the_first() -> None:
    around = SPRING - 1.2 * DAY_S, SPRING + 1.2 * DAY_S
    assert begin("2026-01-01T02:30", Recurrence.DAILY, *around) == ["03-28 01:30", "03-29 01:30", "03-30 00:30"]
    around = AUTUMN - 1.2 * DAY_S, AUTUMN + 1.2 * DAY_S
    assert begin("2026-01-01T02:30", Recurrence.DAILY, *around) == ["10-24 00:30", "10-25 00:30", "10-26 01:30"]


@pytest.mark.parametrize("recurrence", [Recurrence.DAILY, Recurrence.WEEKLY])
def test_no_opening_is_missed_in_short_intervals(recurrence: Recurrence) -> None:
    hours = [SPRING + hour * HOUR_S for hour in range(-10 * 24, int((AUTUMN - SPRING) / HOUR_S) + 10 * 24)]
    hourly = {at for hour in hours for at in begin("2026-01-01T02:30", recurrence, hour, hour)}
    assert hourly == set(begin("2026-01-01T02:30", recurrence, hours[0], hours[-1]))


ZONES = ["Europe/Berlin", "Africa/Casablanca", "Australia/Lord_Howe", "Asia/Gaza", "America/Havana"]


@given(st.sampled_from(ZONES), st.data())
def test_a_zone_reckons_as_the_standard_library_does(name: str, data: st.DataObject) -> None:
    zone, theirs = time_zone(name, 0.0), ZoneInfo.from_file((files("tzdata") / "zoneinfo" / name).open("rb"))
    shown = data.draw(
        st.datetimes(datetime(2000, 1, 2), datetime(2099, 12, 30)).map(lambda clock_time: clock_time.replace(fold=0))
    )
    at = shown.replace(tzinfo=theirs).timestamp()
    assert moment(zone, (shown - datetime(1970, 1, 1)).total_seconds()) == pytest.approx(at, abs=1e-3)
    back = datetime.fromtimestamp(at, theirs).replace(tzinfo=None)
    assert local_s(zone, at) == pytest.approx((back - datetime(1970, 1, 1)).total_seconds(), abs=1e-3)
