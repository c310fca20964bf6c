"""A leader whose clock was wrong, or to which no agent reports, gives way to another control plane."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from control_plane.daemon import ControlPlane
from control_plane.leadership.clock_check import ClockCheck
from control_plane.leadership.giving_way import GivingWay
from control_plane.leadership.leader_elector import LeaderElector
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.steady_clock import SteadyClock
from tests.support import planet
from tests.support.api_app import leading_control_plane
from tests.support.reports import report

HOUR_S = 3600.0


def compared(control_plane: ControlPlane, fleet: FleetSnapshot, clock: SteadyClock) -> ClockCheck:
    """A comparison of the clock with those of the agents of a fleet."""
    return ClockCheck(control_plane.elector, fleet, clock, control_plane._link)


async def test_a_leader_gives_way_when_the_system_clock_is_set() -> None:
    ahead_s, times_set = 0.0, list[float]()
    clock = SteadyClock(system=lambda: time.time() + ahead_s)
    async with leading_control_plane() as control_plane:
        elector = control_plane.elector
        fleet = FleetSnapshot()
        clocks = compared(control_plane, fleet, clock)
        gives_way = GivingWay(elector, clock, fleet, clocks, lambda: False, lambda: times_set.append(clock()))
        await gives_way.tick()
        assert elector.epoch is not None
        ahead_s = HOUR_S
        assert abs(clock() - time.time()) < HOUR_S / 2
        await gives_way.tick()
        assert elector.epoch is None
        assert clock() - time.time() > HOUR_S / 2
        assert clock.behind_s == 0.0
        assert len(times_set) == 1


@pytest.mark.parametrize(("has_others", "received_in_s", "clock_ahead_s", "leads"), [
    (False, None, 0.0, True),
    (True, HOUR_S, 0.0, True),
    (True, None, 0.0, False),
    (True, -HOUR_S, 0.0, False),
    (True, 0.0, 0.0, True),
    (True, 0.0, HOUR_S, False),
    (True, 0.0, -HOUR_S, False),
    (False, 0.0, HOUR_S, True),
])  # fmt: skip
async def test_a_leader_without_reports_of_agents_whose_clocks_agree_gives_way_to_others(
    monkeypatch: pytest.MonkeyPatch, has_others: bool, received_in_s: float | None, clock_ahead_s: float, leads: bool
) -> None:
    monkeypatch.setattr(LeaderElector, "role_age_s", HOUR_S)
    clock, fleet = SteadyClock(), FleetSnapshot()
    if received_in_s is not None:
        received_at = clock() + received_in_s
        reported = replace(report("eu-de"), sent_at=received_at - clock_ahead_s)
        fleet.add_report(reported, received_at, planet.policy())
    async with leading_control_plane() as control_plane:
        clocks = compared(control_plane, fleet, clock)
        await GivingWay(control_plane.elector, clock, fleet, clocks, lambda: has_others).tick()
        assert (control_plane.elector.epoch is not None) is leads


def test_a_stop_of_the_process_between_two_clocks_is_no_difference() -> None:
    monotonic, system = iter((0.0, 0.0, 50.0)), iter((1000.0, 1050.0))
    clock = SteadyClock(system=lambda: next(system), monotonic=lambda: next(monotonic))
    assert clock.behind_s == 0.0
