"""When a drill may begin, and when one is due by the policy's schedule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from control_plane.policy.time_zones import time_zone
from penstock.drills.drill_preconditions import FleetBeforeDrill, missing_without, refusal
from penstock.drills.drill_schedule import due, final_refusal, handled_after
from penstock.drills.drill_state import Drill, DrillPhase, DrillRequest, DrillStep
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.overrides.override_effects import NO_INTERVENTIONS, Interventions
from penstock.policy.kinds.operations import DrillSchedule, Exercise, Recurrence
from penstock.policy.policy import Policy
from penstock.rollout.objective_analysis import ObjectiveCounts
from tests.support.override_builders import drain, interventions
from tests.support.planet import policy
from tests.support.reports import offered, report

DUE_FOR_S, TRY_FOR_S = 600.0, 300.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

REGIONS = ("eu-de", "eu-es", "us-east")
EVACUATE = DrillRequest(Exercise.EVACUATE_REGION, "eu-de", 60.0, 2.0, "a test", "duty")
FAILOVER = msgspec.structs.replace(EVACUATE, exercise=Exercise.STEP_DOWN, region=None)
START = datetime(2026, 12, 1, 2, 0, tzinfo=UTC).timestamp()


def drill(*phases: DrillPhase, **fields: Any) -> Drill:
    return Drill(3, EVACUATE, tuple(DrillStep(phase, 0.0, "") for phase in phases), 1, "north", 1, 1, **fields)


def situation(**fields: Any) -> FleetBeforeDrill:
    usual: dict[str, Any] = {
        "newest": drill(DrillPhase.DONE),
        "is_rolling_out": False,
        "states": dict.fromkeys(REGIONS, RegionState.HEALTHY),
        "withdrawn": (),
        "control_planes": 2,
        "objectives": (ObjectiveCounts("chat", 1.0, 0.99, 1000, 995),),
    }
    return FleetBeforeDrill(**(usual | fields))


def test_a_drill_may_begin_on_a_healthy_fleet() -> None:
    assert refusal(EVACUATE, policy(), situation()) is None
    assert refusal(FAILOVER, policy(), situation(newest=None)) is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"newest": drill(DrillPhase.HOLDING)}, "drill 3 is under way"),
        ({"is_rolling_out": True}, "a rollout"),
        ({"states": {"eu-de": RegionState.HEALTHY, "eu-es": RegionState.FAILED}}, "eu-es failed"),
        ({"states": {"eu-de": RegionState.RECOVERING}}, "eu-de is recovering"),
        ({"objectives": (ObjectiveCounts("chat", 1.0, 0.99, 1000, 900),)}, "only 90.00% of answers of chat"),
        ({"withdrawn": ("eu-es",)}, "eu-es is drained already"),
    ],
)
def test_an_evacuation_is_refused(fields: dict[str, Any], says: str) -> None:
    assert says in (refusal(EVACUATE, policy(), situation(**fields)) or "")


def test_other_refusals() -> None:
    assert "second control plane" in (refusal(FAILOVER, policy(), situation(control_planes=1)) or "")
    elsewhere = msgspec.structs.replace(EVACUATE, region="mars")
    assert "no region mars" in (refusal(elsewhere, policy(), situation()) or "")


def missing(load_per_s: float, in_force: Interventions = NO_INTERVENTIONS) -> str:
    """Missing capacity without Germany, with 100 slots of one second in each of three regions."""
    reports = [report(region, offered(load_per_s, *REGIONS)) for region in REGIONS]
    agents = {(agent_report.region, agent_report.agent): HeldReport(agent_report, 0.0) for agent_report in reports}
    health = {region: RegionHealth(RegionState.HEALTHY) for region in REGIONS}
    return missing_without(policy(), Snapshot(agents, health), "eu-de", in_force, 0.0)


def test_the_reserve_must_cover_the_region() -> None:
    assert missing(50.0) == ""
    assert "the reserve does not cover the loss of eu-de" in missing(65.0)
    assert "slots would be missing" in missing(50.0, interventions(drain("eu-es")))


def under(**fields: Any) -> Policy:
    weekly = DrillSchedule("weekly", Exercise.EVACUATE_REGION, START, "eu-de", Recurrence.WEEKLY, source="d.yaml:3")
    return msgspec.structs.replace(policy(), drills=(msgspec.structs.replace(weekly, **fields),))


def test_a_scheduled_drill_is_due_once_an_occurrence() -> None:
    scheduled = under()
    week_s = 7 * 86_400.0
    assert due(scheduled, None, START - 1.0) is None
    assert due(scheduled, None, START + DUE_FOR_S) is None
    wanted = due(scheduled, None, START + week_s + 5.0)
    assert wanted is not None
    assert (wanted.region, wanted.author, wanted.occurrence) == ("eu-de", "policy d.yaml:3", START + week_s)
    assert final_refusal(wanted, "a rollout", START + week_s + TRY_FOR_S - 1.0) is None
    assert final_refusal(wanted, "a rollout", START + week_s + TRY_FOR_S) == "a rollout"
    assert final_refusal(wanted, None, START + week_s + TRY_FOR_S) == "it could not begin within 300 s"
    handled = drill(DrillPhase.REFUSED, handled=handled_after(scheduled, None, wanted))
    assert due(scheduled, handled, START + week_s + 6.0) is None
    by_hand = drill(DrillPhase.DONE, handled=handled_after(scheduled, handled, EVACUATE))
    assert due(scheduled, by_hand, START + week_s + 6.0) is None
    assert due(scheduled, by_hand, START + 2 * week_s) is not None
    assert handled_after(policy(), handled, EVACUATE) == {}


def test_a_schedule_without_recurrence_is_due_once() -> None:
    once = under(recurrence=Recurrence.NEVER)
    assert due(once, None, START) is not None
    assert due(once, None, START + 7 * 86_400.0) is None


def test_a_schedule_follows_the_clocks_of_its_time_zone() -> None:
    first = datetime(2026, 10, 20, 0, 30, tzinfo=UTC).timestamp()
    berlin = {"Europe/Berlin": time_zone("Europe/Berlin", first)}
    local = msgspec.structs.replace(
        under(starts_at=first, recurrence=Recurrence.DAILY, time_zone="Europe/Berlin"), time_zones=berlin
    )
    in_winter = datetime(2026, 10, 27, 1, 30, tzinfo=UTC).timestamp()
    assert due(local, None, in_winter) is not None
    assert due(local, None, in_winter - 3600.0) is None
