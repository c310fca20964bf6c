"""Maintenance windows: the drains that follow from a policy at a moment."""

from __future__ import annotations

import msgspec
import pytest

from penstock.maintenance import PERIOD_S, openings, windows
from penstock.overrides import OverrideKind
from penstock.policy import Failover, MaintenanceWindow, Policy, Recurrence
from tests.planet import policy

HOUR_S, DAY_S = 3600.0, 86_400.0
START = 1_800_000_000.0


def under(recurrence: Recurrence, **fields: float) -> Policy:
    one = MaintenanceWindow("disks", frozenset({"eu-de"}), START, HOUR_S, recurrence, 600.0, "windows.yaml:3")
    window = msgspec.structs.replace(one, **fields)
    return msgspec.structs.replace(policy(), maintenance=(window,), failover=Failover(failback_ramp_s=60.0))


def draining(policy: Policy, now: float) -> bool:
    return any(one.holds(now) for one in windows(policy, now))


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


def test_a_window_says_who_wanted_it_and_grants_its_region_the_ramp_afterwards() -> None:
    (one,) = windows(under(Recurrence.DAILY), START + HOUR_S + 30.0)
    assert (one.kind, one.region, one.author) == (OverrideKind.DRAIN, "eu-de", "policy windows.yaml:3")
    assert (one.begins_at, one.expires_at) == (START - 600, START + HOUR_S)
    assert one.weight(START + HOUR_S + 30.0, 60.0) == pytest.approx(0.5)
    assert windows(under(Recurrence.DAILY), START + HOUR_S + 61.0) == ()


def test_each_occurrence_has_an_id_of_its_own_that_every_control_plane_gives_it() -> None:
    first = windows(under(Recurrence.DAILY), START)
    assert first == windows(under(Recurrence.DAILY), START + 100.0)
    assert first[0].id != windows(under(Recurrence.DAILY), START + DAY_S)[0].id


def test_lead_times_longer_than_the_period_between_do_not_hide_a_window() -> None:
    policy = under(Recurrence.DAILY, lead_s=23 * HOUR_S)
    assert draining(policy, START + 2 * HOUR_S)


def test_openings_are_those_within_the_time_asked_for() -> None:
    policy = under(Recurrence.DAILY)
    assert openings(policy, START, START + DAY_S) == (START + DAY_S - 600,)
    assert len(openings(policy, START, float("inf"))) == 8
    assert openings(policy, START, START + HOUR_S) == ()


def test_regions_that_the_policy_does_not_have_are_left_out() -> None:
    policy = under(Recurrence.DAILY)
    window = msgspec.structs.replace(policy.maintenance[0], regions=frozenset({"eu-de", "mars"}))
    assert len(windows(msgspec.structs.replace(policy, maintenance=(window,)), START)) == 1
