"""A logged request is explained by the plan and the region states of its moment, while they are kept."""

from __future__ import annotations

import pytest

from control_plane.events.event_log import EventKind, EventLog, FleetEvent
from control_plane.planning.past_moment import KeptPast, views_then
from penstock.health.region_health import RegionState
from penstock.planning.plan_history import PlanHistory
from penstock.routing.region_selection import RegionView
from tests.unit.penstock.planning.test_plan_history import Leader, slices

NOW = slices(50, 0.25)["a"]


@pytest.fixture
def past() -> KeptPast:
    history = PlanHistory()
    history.begin({})
    leader = Leader(history)
    leader.look(slices(10, 1.0))
    leader.look(slices(20, 0.5))
    leader.look(slices(30, 0.25))
    return KeptPast(history, EventLog(lambda: 0.0))


def changed(at: float, region: str, before: str, after: str) -> FleetEvent:
    return FleetEvent(f"1-{at}", at, EventKind.REGION, {"region": region, "before": before, "after": after})


@pytest.mark.parametrize(("generation", "share"), [(20, 0.5), (25, 0.5), (30, 0.25), (44, 0.25)])
def test_the_plan_of_a_kept_generation_is_used(past: KeptPast, generation: int, share: float) -> None:
    found = past.plan("a", generation, NOW)
    assert found.plan is not None
    assert (found.plan.classes[0].arcs[0].share, found.plan.generation) == (share, generation)
    assert f"plan {generation}" in found.note


@pytest.mark.parametrize(
    ("generation", "note"), [(3, "plan 3 is not kept"), (60, "plan 60 is not"), (None, "names no plan")]
)
def test_the_plan_of_now_stands_in_with_a_note(past: KeptPast, generation: int | None, note: str) -> None:
    found = past.plan("a", generation, NOW)
    assert found.plan is NOW
    assert note in found.note


def test_regions_have_the_state_of_the_moment() -> None:
    events = [
        changed(10.0, "a", "healthy", "failed"),
        changed(20.0, "a", "failed", "recovering"),
        changed(30.0, "b", "healthy", "failed"),
        FleetEvent("1-9", 12.0, EventKind.PLAN, {}),
    ]
    present = {name: RegionView(RegionState.FAILED, ready=False) for name in "abc"}
    states = {name: view.state.value for name, view in views_then(present, events, 15.0, (), None).items()}
    assert states == {"a": "failed", "b": "healthy", "c": "failed"}
    assert views_then(present, events, 25.0, (), None)["a"].state is RegionState.RECOVERING


def test_a_draining_region_was_reachable_and_the_server_was_ready() -> None:
    present = {"a": RegionView(RegionState.HEALTHY, ready=False, expected_wait_s=3.0)}
    view = views_then(present, [changed(10.0, "a", "healthy", "draining")], 15.0, ("a",), None)["a"]
    assert view == RegionView(RegionState.HEALTHY, ready=True)


def test_the_region_that_served_could_serve() -> None:
    present = {"a": RegionView(RegionState.FAILED, ready=False)}
    assert views_then(present, [], 15.0, (), "a")["a"] == RegionView(RegionState.HEALTHY, ready=True)
    assert views_then(present, [], 15.0, (), "b") == present
