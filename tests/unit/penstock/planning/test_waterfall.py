"""The waterfall: home first, overflow to the next nearest permitted region, in steps unless a region is lost."""

from __future__ import annotations

import msgspec
import pytest

from penstock.fleet.capacity import MIN_COMPLETIONS, supply
from penstock.fleet.report import AgentReport, PoolReport
from penstock.fleet.snapshot import FADED_S, HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.plan import ArcReason, RegionPlan
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.policy import Policy
from tests.support.planner_calls import tick_input
from tests.support.planner_calls import waterfall_plans as plan
from tests.support.three_regions import EU, POLICY, fleet, in_force, offered, region


def planned(
    snapshot: Snapshot,
    previous: dict[str, RegionPlan] | None = None,
    *,
    policy: Policy = POLICY,
    now: float = 0.0,
    elapsed_s: float = 1.0,
) -> dict[str, RegionPlan]:
    return plan(policy, snapshot, previous or {}, now=now, epoch=3, generation=9, elapsed_s=elapsed_s)


def arcs(plans: dict[str, RegionPlan], origin: str = "de", model: str = "m") -> dict[str, tuple[float, ArcReason]]:
    (entry,) = [entry for entry in plans[origin].classes if entry.model == model]
    return {arc.server: (pytest.approx(arc.share), arc.why) for arc in entry.arcs}


def test_every_region_has_a_slice_with_its_name() -> None:
    plans = planned(fleet(region("de"), region("es"), region("us")))
    assert plans.keys() == POLICY.regions.keys()
    assert {
        (region_plan.epoch, region_plan.generation, region_plan.policy_digest) for region_plan in plans.values()
    } == {(3, 9, POLICY.digest())}


def test_demand_stays_home_while_there_is_room() -> None:
    plans = planned(fleet(region("de", offered(80.0)), region("es"), region("us")))
    assert arcs(plans) == {"de": (1.0, ArcReason.HOME)}
    assert plans["de"].classes[0].fallbacks == ("es", "us")


def test_an_origin_has_sixteen_fallbacks_at_most_the_nearest() -> None:
    names = tuple(f"r{number:02}" for number in range(20))
    regions = {name: Region(name, "DE", 50.0, float(number)) for number, name in enumerate(names)}
    reports = [region(name, *([offered(8.0, names)] if name == "r00" else [])) for name in names]
    plans = planned(fleet(*reports), policy=msgspec.structs.replace(POLICY, regions=regions))
    assert plans["r00"].classes[0].fallbacks == names[1:17]


def test_overflow_runs_down_to_the_next_nearest() -> None:
    plans = planned(fleet(region("de", offered(200.0)), region("es"), region("us")))
    assert arcs(plans) == {
        "de": (0.4, ArcReason.HOME),
        "es": (0.4, ArcReason.SPILLOVER),
        "us": (0.2, ArcReason.SPILLOVER),
    }


def test_overflow_fills_a_slower_region_to_its_target_only() -> None:
    slow = region("es")
    pools = tuple(msgspec.structs.replace(pool, service_s=2.0) for pool in slow.report.pools)
    slow = HeldReport(msgspec.structs.replace(slow.report, pools=pools), 0.0)
    plans = planned(fleet(region("de", offered(200.0)), slow, region("us")))
    assert arcs(plans) == {
        "de": (0.4, ArcReason.HOME),
        "es": (0.2, ArcReason.SPILLOVER),
        "us": (0.4, ArcReason.SPILLOVER),
    }


def test_overflow_never_leaves_its_residency_class() -> None:
    plans = planned(fleet(region("de", offered(400.0, EU)), region("es"), region("us")))
    assert arcs(plans) == {"de": (0.8, ArcReason.HOME), "es": (0.2, ArcReason.SPILLOVER)}
    assert plans["de"].classes[0].fallbacks == ()


def test_home_demand_goes_before_others_overflow() -> None:
    plans = planned(fleet(region("de", offered(120.0)), region("es", offered(60.0)), region("us")))
    assert arcs(plans, "es") == {"es": (1.0, ArcReason.HOME)}
    assert arcs(plans, "de") == {
        "de": (80 / 120, ArcReason.HOME),
        "es": (20 / 120, ArcReason.SPILLOVER),
        "us": (20 / 120, ArcReason.SPILLOVER),
    }


def test_the_class_with_fewer_places_to_go_drinks_first() -> None:
    plans = planned(fleet(region("de", offered(80.0), offered(80.0, EU)), region("es", slots=0), region("us")))
    by_class = {entry.residency: {arc.server for arc in entry.arcs} for entry in plans["de"].classes}
    assert by_class == {"de+es": {"de"}, "de+es+us": {"us"}}


def test_a_failed_home_is_left_whole_and_at_once() -> None:
    snapshot = fleet(region("de", offered(40.0)), region("es"), region("us"), de=RegionState.FAILED)
    plans = planned(snapshot, in_force("de", {"de": 1.0}), elapsed_s=0.01)
    assert arcs(plans) == {"es": (1.0, ArcReason.FAILOVER)}


def test_a_home_without_a_ready_endpoint_is_a_failover_though_its_agents_stand() -> None:
    plans = planned(fleet(region("de", offered(40.0), ready=0), region("es"), region("us")))
    assert arcs(plans) == {"es": (1.0, ArcReason.FAILOVER)}


def test_a_slice_carries_its_regions_ramp_for_what_it_has_no_entry_for() -> None:
    ramps = {
        state: planned(fleet(region("de"), region("es"), region("us"), de=state), now=2.5)["de"].ramp
        for state in RegionState
    }
    assert ramps == {
        RegionState.UNKNOWN: 1.0,
        RegionState.HEALTHY: 1.0,
        RegionState.DEGRADED: 1.0,
        RegionState.SUSPECT: 1.0,
        RegionState.FAILED: 0.0,
        RegionState.DRAINING: 0.0,
        RegionState.RECOVERING: pytest.approx(0.25),
    }


def test_a_returning_home_keeps_no_failover_for_classes_without_demand() -> None:
    snapshot = fleet(region("de"), region("es"), region("us"), de=RegionState.RECOVERING)
    assert planned(snapshot, in_force("de", {"es": 1.0}))["de"].classes == ()


def test_a_recovered_home_has_no_more_of_small_demand_than_its_ramp_grants() -> None:
    snapshot = fleet(region("de", offered(1.0)), region("es"), region("us"), de=RegionState.RECOVERING)
    arcs = planned(snapshot, now=2.5)["de"].classes[0].arcs
    assert [(arc.server, arc.share, arc.why) for arc in arcs] == [
        ("de", pytest.approx(0.25), ArcReason.HOME),
        ("es", pytest.approx(0.75), ArcReason.FAILBACK),
    ]


def test_a_recovered_home_fills_along_its_ramp() -> None:
    snapshot = fleet(region("de", offered(80.0)), region("es"), region("us"), de=RegionState.RECOVERING)
    plans = planned(snapshot, in_force("de", {"es": 1.0}), now=1.0, elapsed_s=1.0)
    assert arcs(plans) == {"de": (0.1, ArcReason.HOME), "es": (0.9, ArcReason.FAILBACK)}


def test_home_is_where_the_model_is() -> None:
    snapshot = fleet(region("us", offered(40.0, model="n")), region("de", models=("m", "n")), region("es"))
    assert arcs(planned(snapshot), "us", "n") == {"de": (1.0, ArcReason.HOME)}


def test_shares_move_by_no_more_than_the_step() -> None:
    snapshot = fleet(region("de", offered(200.0)), region("es"), region("us"))
    plans = planned(snapshot, in_force("de", {"de": 1.0}), elapsed_s=1.0)
    assert arcs(plans)["de"] == (0.75, ArcReason.HOME)


def test_spillover_ends_when_the_surge_does() -> None:
    plans = in_force("de", {"de": 0.4, "es": 0.4, "us": 0.2})
    snapshot = fleet(region("de", offered(40.0)), region("es"), region("us"))
    for _ in range(6):
        plans = planned(snapshot, plans, elapsed_s=0.5)
    assert arcs(plans) == {"de": (1.0, ArcReason.HOME)}


def test_demand_that_fits_nowhere_stays_at_home() -> None:
    plans = planned(fleet(region("de", offered(800.0, ("de",)))))
    assert arcs(plans) == {"de": (1.0, ArcReason.HOME)}


def test_a_class_that_no_region_can_serve_has_no_entry() -> None:
    plans = planned(fleet(region("de", offered(8.0, EU), ready=0), region("es", ready=0), region("us")))
    assert plans["de"].classes == ()


def test_demand_for_an_unknown_model_is_not_planned() -> None:
    assert planned(fleet(region("de", offered(8.0, model="other"))))["de"].classes == ()


def test_a_share_in_force_where_it_may_not_be_is_not_moved_from_but_dropped() -> None:
    snapshot = fleet(region("de", offered(40.0, EU)), region("es"), region("us"))
    plans = planned(snapshot, in_force("de", {"us": 1.0}, EU), elapsed_s=0.01)
    assert arcs(plans) == {"de": (1.0, ArcReason.HOME)}


def test_an_origin_without_a_report_keeps_its_entries() -> None:
    before = in_force("es", {"de": 1.0})
    assert planned(fleet(region("de")), before)["es"].classes == before["es"].classes


def test_a_faded_origin_keeps_what_it_had() -> None:
    before = in_force("de", {"es": 1.0})
    snapshot = fleet(region("de", offered(40.0)))
    assert planned(snapshot, before, now=FADED_S)["de"].classes == before["de"].classes


def test_what_is_kept_names_only_regions_and_models_of_the_policy() -> None:
    before = in_force("es", {"us": 1.0})
    smaller = msgspec.structs.replace(POLICY, regions={n: r for n, r in POLICY.regions.items() if n != "us"})
    assert planned(fleet(region("de")), before, policy=smaller)["es"].classes == ()
    other_model = msgspec.structs.replace(POLICY, models={"n": Model("n")})
    assert planned(fleet(region("de")), before, policy=other_model)["es"].classes == ()


def test_a_service_time_with_few_samples_is_taken_from_other_regions() -> None:
    """A region that has just recovered reports the prior, which may differ much from the others' measurements."""
    pools = {
        "a": PoolReport("m", 4, 4, 100, 0, 15.0, completions=0),
        "half": PoolReport("m", 4, 4, 0, 0, 2.5, completions=MIN_COMPLETIONS // 2),
        "b": PoolReport("m", 4, 4, 100, 0, 2.0),
        "c": PoolReport("m", 4, 4, 300, 0, 4.0),
    }
    agents = {(name, "1"): HeldReport(AgentReport(name, "1", 1, 1, 0.0, (pool,)), 0.0) for name, pool in pools.items()}
    health = dict.fromkeys(pools, RegionHealth(RegionState.HEALTHY))
    policy = Policy(
        regions={name: Region(name, "DE", 0.0, 0.0) for name in pools},
        models={"m": Model("m")},
        tenants={},
        residency=(),
    )
    supplied = supply(policy, Snapshot(agents, health), 0.0)
    assert [supplied[name, "m"].service_s for name in pools] == [3.5, 3.0, 2.0, 4.0]
    alone = supply(policy, Snapshot({("a", "1"): agents["a", "1"]}, health), 0.0)
    assert alone["a", "m"].service_s == 15.0


def test_service_time_unknown_is_taken_from_policy() -> None:
    held = region("de", offered(30.0, model="n"), models=("n",))
    unseen = tuple(msgspec.structs.replace(pool, service_s=0.0) for pool in held.report.pools)
    held = HeldReport(msgspec.structs.replace(held.report, pools=unseen), 0.0)
    assert arcs(planned(fleet(held, region("es", models=("n",)))), model="n")["de"] == (80 / 120, ArcReason.HOME)


def test_an_entry_that_does_not_change_is_the_same_object() -> None:
    """The publisher skips a slice whose classes are those in force."""
    snapshot = fleet(region("de", offered(200.0)), region("es"), region("us"))
    planner = WaterfallPlanner()
    plans: dict[str, RegionPlan] = {}
    for _ in range(3):
        before = plans
        plans = planner.plan(tick_input(POLICY, snapshot, plans, elapsed_s=0.5)).plans
    assert all(
        after is old
        for origin, plan in plans.items()
        for after, old in zip(plan.classes, before[origin].classes, strict=True)
    )
