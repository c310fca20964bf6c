"""The flow planner: home first, other regions if they cost less, with reasons, in steps, with a reserve."""

from __future__ import annotations

import weakref
from math import inf

import msgspec
import pytest

from penstock.fleet.counts.message_bytes import MessageBytes
from penstock.fleet.report import PeerReport
from penstock.fleet.snapshot import FADED_S, Snapshot
from penstock.health.region_health import RegionState
from penstock.planning.linear_program import arc_details
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.plan import ArcReason, RegionPlan
from penstock.planning.planner import PlanResult
from penstock.planning.share_moves import Key
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import PriceHours, Region, SpotPool
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from tests.support import three_regions
from tests.support.planner_calls import tick_input
from tests.support.three_regions import EU, EVERYWHERE, fleet, in_force, offered, region

FORECAST_WEIGHT = 0.9
"""As documented, and not imported: a test fails if a tuned constant changes."""

POLICY = msgspec.structs.replace(three_regions.POLICY, objective=Objective(queueing_weight=0.0))
PATIENT_S = inf


def decided(
    snapshot: Snapshot,
    previous: dict[str, RegionPlan] | None = None,
    *,
    planner: FlowPlanner | None = None,
    policy: Policy = POLICY,
    now: float = 0.0,
    elapsed_s: float = 1.0,
    ahead: dict[Key, float] | None = None,
) -> PlanResult:
    return (planner or FlowPlanner(PATIENT_S)).plan(
        tick_input(
            policy,
            snapshot,
            previous or {},
            now=now,
            epoch=3,
            generation=9,
            elapsed_s=elapsed_s,
            forecast_per_s=ahead or {},
        )
    )


def weighing(**weights: float | bool) -> Policy:
    return msgspec.structs.replace(POLICY, objective=msgspec.structs.replace(POLICY.objective, **weights))


def arcs(planned: PlanResult, origin: str = "de", regions: tuple[str, ...] = EVERYWHERE) -> dict[str, tuple]:
    entry = planned.plans[origin].lookup("m", residency_class(frozenset(regions)).name)
    assert entry is not None
    return {arc.server: (pytest.approx(arc.share, abs=1e-6), arc.why) for arc in entry.arcs}


def details(planned: PlanResult, origin: str = "de") -> dict[str, str]:
    return {arc.server: arc.detail for entry in planned.plans[origin].classes for arc in entry.arcs if arc.detail}


def test_every_region_has_a_slice_with_its_name() -> None:
    plans = decided(fleet(region("de"), region("es"), region("us"))).plans
    assert plans.keys() == POLICY.regions.keys()
    assert {
        (region_plan.epoch, region_plan.generation, region_plan.policy_digest) for region_plan in plans.values()
    } == {(3, 9, POLICY.digest())}


def test_demand_stays_home_while_there_is_room() -> None:
    planned = decided(fleet(region("de", offered(80.0)), region("es"), region("us")))
    assert arcs(planned) == {"de": (1.0, ArcReason.HOME)}
    assert planned.plans["de"].classes[0].fallbacks == ("es", "us")
    assert planned.shortfalls == ()


def test_overflow_goes_to_the_nearest_that_has_room() -> None:
    planned = decided(fleet(region("de", offered(200.0)), region("es"), region("us")))
    assert arcs(planned) == {
        "de": (0.4, ArcReason.HOME),
        "es": (0.4, ArcReason.SPILLOVER),
        "us": (0.2, ArcReason.SPILLOVER),
    }
    assert details(planned) == {"es": arc_details.HOME_IS_FULL, "us": arc_details.HOME_IS_FULL}


def test_those_who_cannot_leave_stay_and_those_who_can_make_room() -> None:
    policy = weighing(survive_one_loss=False)
    snapshot = fleet(region("de", offered(80.0), offered(80.0, ("de",))), region("es"), region("us"))
    planned = decided(snapshot, policy=policy)
    assert arcs(planned, regions=("de",)) == {"de": (1.0, ArcReason.HOME)}
    assert arcs(planned) == {"es": (1.0, ArcReason.SPILLOVER)}


def test_overflow_beyond_all_targets_fills_every_slot_before_it_queues_at_home() -> None:
    planned = decided(fleet(region("de", offered(190.0, EU)), region("es"), region("us")))
    loads = {server: share.expected * 190.0 for server, (share, _) in arcs(planned, regions=EU).items()}
    assert loads["de"] <= 100.0 + 1e-6
    assert loads["es"] <= 100.0 + 1e-6


def test_what_no_slot_can_take_stays_at_home_and_is_reported_missing() -> None:
    planned = decided(fleet(region("de", offered(400.0, EU)), region("es"), region("us")))
    assert arcs(planned, regions=EU) == {"de": (0.75, ArcReason.HOME), "es": (0.25, ArcReason.SPILLOVER)}
    now = [shortfall for shortfall in planned.shortfalls if shortfall.lost is None]
    assert sum(shortfall.slots for shortfall in now) == pytest.approx(400.0 - 160.0)
    assert {shortfall.residency for shortfall in now} == {("de+es",)}


def test_a_failed_home_is_left_whole_and_at_once() -> None:
    snapshot = fleet(region("de", offered(40.0)), region("es"), region("us"), de=RegionState.FAILED)
    planned = decided(snapshot, in_force("de", {"de": 1.0}), elapsed_s=0.01)
    assert arcs(planned) == {"es": (1.0, ArcReason.FAILOVER)}


def test_a_recovered_home_fills_along_its_ramp() -> None:
    snapshot = fleet(region("de", offered(80.0)), region("es"), region("us"), de=RegionState.RECOVERING)
    planned = decided(snapshot, in_force("de", {"es": 1.0}), now=1.0)
    assert arcs(planned) == {"de": (0.1, ArcReason.HOME), "es": (0.9, ArcReason.FAILBACK)}


def test_shares_move_by_no_more_than_the_step() -> None:
    snapshot = fleet(region("de", offered(200.0)), region("es"), region("us"))
    planned = decided(snapshot, in_force("de", {"de": 1.0}))
    assert arcs(planned)["de"] == (0.75, ArcReason.HOME)


def test_spillover_ends_with_the_surge_and_states_its_reason_meanwhile() -> None:
    plans = in_force("de", {"de": 0.4, "es": 0.4, "us": 0.2})
    planner = FlowPlanner(PATIENT_S)
    snapshot = fleet(region("de", offered(40.0)), region("es"), region("us"))
    first = decided(snapshot, plans, elapsed_s=0.5, planner=planner)
    assert details(first) == {"es": arc_details.LEAVING, "us": arc_details.LEAVING}
    for _ in range(6):
        first = decided(snapshot, first.plans, elapsed_s=0.5, planner=planner)
    assert arcs(first) == {"de": (1.0, ArcReason.HOME)}


def test_a_class_that_no_region_can_serve_has_no_entry() -> None:
    planned = decided(fleet(region("de", offered(8.0, EU), ready=0), region("es", ready=0), region("us")))
    assert planned.plans["de"].classes == ()


def test_demand_for_an_unknown_model_is_not_planned() -> None:
    assert decided(fleet(region("de", offered(8.0, model="other")))).plans["de"].classes == ()


def test_an_origin_without_a_recent_report_keeps_its_entries() -> None:
    before = in_force("es", {"de": 1.0})
    assert decided(fleet(region("de")), before).plans["es"].classes == before["es"].classes
    before = in_force("de", {"es": 1.0})
    snapshot = fleet(region("de", offered(40.0)))
    assert decided(snapshot, before, now=FADED_S).plans["de"].classes == before["de"].classes


def test_a_share_in_force_where_it_may_not_be_is_not_moved_from_but_dropped() -> None:
    snapshot = fleet(region("de", offered(40.0, EU)), region("es"), region("us"))
    planned = decided(snapshot, in_force("de", {"us": 1.0}, EU), elapsed_s=0.01)
    assert arcs(planned, regions=EU) == {"de": (1.0, ArcReason.HOME)}


def test_a_home_that_costs_much_more_is_left_for_a_cheap_neighbour() -> None:
    dear = {**POLICY.regions, "de": msgspec.structs.replace(POLICY.regions["de"], cost_per_gpu_hour=30.0)}
    planned = decided(
        fleet(region("de", offered(40.0)), region("es"), region("us")),
        policy=msgspec.structs.replace(POLICY, regions=dear),
    )
    assert arcs(planned) == {"es": (1.0, ArcReason.SPILLOVER)}
    assert details(planned) == {"es": arc_details.COSTS_LESS}


def test_a_neighbour_whose_pool_is_cheap_spot_capacity_serves_this_model_and_no_other() -> None:
    regions = {name: msgspec.structs.replace(each, cost_per_gpu_hour=30.0) for name, each in POLICY.regions.items()}
    for spot_model, server in (("m", "es"), ("another", "de")):
        spot = msgspec.structs.replace(regions["es"], spot=(SpotPool((spot_model,), 1.0),))
        planned = decided(
            fleet(region("de", offered(40.0)), region("es"), region("us")),
            policy=msgspec.structs.replace(POLICY, regions={**regions, "es": spot}),
        )
        assert list(arcs(planned)) == [server]


def test_a_home_that_costs_more_at_these_hours_alone_is_left_at_these_hours() -> None:
    dear = (PriceHours(30.0, from_hour=18, to_hour=20),)
    hours = {**POLICY.regions, "de": msgspec.structs.replace(POLICY.regions["de"], price_hours=dear)}
    policy = msgspec.structs.replace(POLICY, regions=hours)
    for hour, server in ((17, "de"), (18, "es"), (19, "es"), (20, "de")):
        now = hour * 3600.0
        reports = fleet(region("de", offered(40.0)), region("es"), region("us"))
        agents = {key: msgspec.structs.replace(held, received_at=now) for key, held in reports.agents.items()}
        planned = decided(msgspec.structs.replace(reports, agents=agents), policy=policy, now=now)
        assert list(arcs(planned)) == [server], hour


def test_a_measured_round_trip_counts_in_place_of_the_policys_but_changes_no_order_of_the_policy() -> None:
    ordered = {**POLICY.regions, "us": msgspec.structs.replace(POLICY.regions["us"], spillover_order=("de",))}

    def planned(de_ms: float, policy: Policy = POLICY) -> list[str]:
        full, peers = region("us", offered(40.0), slots=1), (PeerReport("de", RegionState.HEALTHY, de_ms),)
        seen = msgspec.structs.replace(full, report=msgspec.structs.replace(full.report, peers=peers))
        found = decided(fleet(seen, region("de"), region("es")), policy=policy)
        return [server for server in arcs(found, "us") if server != "us"]

    assert planned(POLICY.round_trip_ms("us", "de")) != planned(1.0) == ["de"]
    assert planned(900.0) == ["es"]
    assert planned(9000.0, msgspec.structs.replace(POLICY, regions=ordered)) == ["de"]


def test_egress_that_costs_much_more_keeps_bulky_answers_at_home() -> None:
    models = {"m": Model("m", response_bytes=1e8)}
    regions = {
        name: msgspec.structs.replace(plain, egress_cost_per_gb=0.5, cost_per_gpu_hour=30.0 if name == "de" else 1.0)
        for name, plain in POLICY.regions.items()
    }
    snapshot = fleet(region("de", offered(40.0)), region("es"), region("us"))
    bulky = decided(snapshot, policy=msgspec.structs.replace(POLICY, regions=regions, models=models))
    assert arcs(bulky) == {"de": (1.0, ArcReason.HOME)}


def test_measured_sizes_count_in_the_egress_term_in_place_of_the_policys() -> None:
    regions = {
        name: msgspec.structs.replace(plain, egress_cost_per_gb=0.5, cost_per_gpu_hour=30.0 if name == "de" else 1.0)
        for name, plain in POLICY.regions.items()
    }

    def planned(*sizes: MessageBytes) -> set[str]:
        seen = region("de", offered(40.0))
        seen = msgspec.structs.replace(seen, report=msgspec.structs.replace(seen.report, message_bytes=sizes))
        found = decided(
            fleet(seen, region("es"), region("us")), policy=msgspec.structs.replace(POLICY, regions=regions)
        )
        return set(arcs(found))

    assert planned() != {"de"}
    assert planned(MessageBytes("m", 1000, 2_000.0, 1e8)) == {"de"}
    assert planned(MessageBytes("m", 0, 2_000.0, 1e8)) == planned()


def test_a_move_that_gains_little_is_not_made_but_going_home_is() -> None:
    near = {**POLICY.regions, "fr": Region("fr", "FR", 40.5, -3.6), "us": POLICY.regions["us"]}
    policy = msgspec.structs.replace(POLICY, regions=near)
    everywhere = ("de", "es", "fr", "us")
    snapshot = fleet(
        region("us", offered(120.0, everywhere), slots=50), region("es"), region("fr"), region("de", slots=1)
    )
    first = decided(snapshot, policy=policy)
    nearest = next(name for name in ("es", "fr") if name in arcs(first, "us", everywhere))
    farther = "fr" if nearest == "es" else "es"
    held = in_force("us", {"us": 1 / 3, farther: 2 / 3}, everywhere)
    stays = arcs(decided(snapshot, held, policy=policy), "us", everywhere)
    assert stays[farther] == (pytest.approx(2 / 3, abs=0.02), ArcReason.SPILLOVER)
    homes = decided(
        fleet(region("us", offered(40.0, everywhere)), region(farther)), held, policy=policy, elapsed_s=10.0
    )
    assert arcs(homes, "us", everywhere) == {"us": (1.0, ArcReason.HOME)}


def test_demand_leaves_a_pool_that_fills_before_its_target_where_a_round_trip_costs_less_than_waiting() -> None:
    snapshot = fleet(region("de", offered(70.0)), region("es"), region("us"))
    patient, impatient = decided(snapshot), decided(snapshot, policy=weighing(queueing_weight=20.0))
    assert arcs(patient) == {"de": (1.0, ArcReason.HOME)}
    assert 0.5 < arcs(impatient)["de"][0].expected < 1.0
    assert details(impatient) == {"es": arc_details.COSTS_LESS}


def test_demand_that_may_go_anywhere_leaves_room_for_a_loss_to_demand_that_may_not() -> None:
    snapshot = fleet(region("de", offered(50.0, EU), offered(25.0)), region("es", offered(40.0, EU)), region("us"))
    kept, spent = decided(snapshot), decided(snapshot, policy=weighing(survive_one_loss=False))
    assert arcs(spent) == {"de": (1.0, ArcReason.HOME)}
    # Of 200 slots in de and es one half may go, and 90 must fit into the other: 10 more may be in each of them.
    assert arcs(kept) == {
        "de": (0.4, ArcReason.HOME),
        "es": (0.4, ArcReason.SPILLOVER),
        "us": (0.2, ArcReason.SPILLOVER),
    }
    assert set(details(kept).values()) == {arc_details.KEEPS_RESERVE}
    assert [shortfall for shortfall in kept.shortfalls if shortfall.lost in EU] == []
    assert [shortfall.lost for shortfall in decided(snapshot, spent.plans, elapsed_s=0.0).shortfalls] == []


def test_a_loss_that_cannot_be_absorbed_is_reported_with_its_classes_and_the_regions_where_capacity_would_help() -> (
    None
):
    planned = decided(fleet(region("de", offered(70.0, EU)), region("es", offered(70.0, EU)), region("us")))
    missing = {
        (shortfall.lost, shortfall.regions, shortfall.residency): shortfall.slots for shortfall in planned.shortfalls
    }
    assert missing == {
        ("de", ("es",), ("de+es",)): pytest.approx(40.0),
        ("es", ("de",), ("de+es",)): pytest.approx(40.0),
    }


def test_a_class_with_one_region_loses_all_of_it() -> None:
    planned = decided(fleet(region("de", offered(50.0, ("de",))), region("es"), region("us")))
    (missing,) = planned.shortfalls
    assert (missing.lost, missing.regions, missing.residency, missing.requests_per_s) == (
        "de",
        (),
        ("de",),
        pytest.approx(50.0),
    )


def test_without_reserve_the_result_has_no_losses() -> None:
    snapshot = fleet(region("de", offered(70.0, EU)), region("es", offered(70.0, EU)), region("us"))
    assert decided(snapshot, policy=weighing(survive_one_loss=False)).shortfalls == ()


def test_demand_ahead_is_planned_for_when_it_is_higher() -> None:
    snapshot = fleet(region("de", offered(80.0)), region("es"), region("us"))
    key = Key("de", "m", "de+es+us")
    assert arcs(decided(snapshot, ahead={key: 160.0 / FORECAST_WEIGHT}))["de"] == (0.5, ArcReason.HOME)
    assert arcs(decided(snapshot, ahead={key: 10.0})) == {"de": (1.0, ArcReason.HOME)}


def test_without_time_the_waterfall_decides_and_the_result_states_it() -> None:
    snapshot = fleet(region("de", offered(200.0)), region("es"), region("us"))
    planned = decided(snapshot, planner=FlowPlanner(0.0))
    assert list(planned.fallbacks) == ["m"]
    assert "time" in planned.fallbacks["m"]
    assert arcs(planned) == {
        "de": (0.4, ArcReason.HOME),
        "es": (0.4, ArcReason.SPILLOVER),
        "us": (0.2, ArcReason.SPILLOVER),
    }


def test_ties_between_regions_are_broken_by_name_and_stay_so() -> None:
    twins = {name: Region(name, "DE", 50.0, 8.0) for name in ("aa", "bb", "cc")} | {"zz": Region("zz", "US", 0.0, 0.0)}
    policy = msgspec.structs.replace(POLICY, regions=twins)
    everywhere = ("aa", "bb", "cc", "zz")
    snapshot = fleet(region("zz", offered(60.0, everywhere), slots=1), *(region(name) for name in ("aa", "bb", "cc")))
    planner, plans = FlowPlanner(PATIENT_S), {}
    seen = []
    for _ in range(4):
        planned = decided(snapshot, plans, policy=policy, planner=planner)
        plans = planned.plans
        seen.append(set(arcs(planned, "zz", everywhere)))
    assert seen == [{"aa", "zz"}] * 4


def test_a_new_policy_a_new_class_and_a_new_region_are_learnt_between_ticks() -> None:
    planner = FlowPlanner(PATIENT_S)
    first = decided(fleet(region("de", offered(200.0)), region("es")), planner=planner)
    assert set(arcs(first)) == {"de", "es"}
    more = fleet(region("de", offered(200.0), offered(10.0, EU)), region("es"), region("us"))
    second = decided(more, first.plans, planner=planner, elapsed_s=10.0)
    assert arcs(second)["us"][0].expected > 0.0
    assert arcs(second, regions=EU)
    smaller = msgspec.structs.replace(POLICY, regions={n: r for n, r in POLICY.regions.items() if n != "us"})
    third = decided(more, second.plans, planner=planner, policy=smaller, elapsed_s=10.0)
    assert set(arcs(third)) == {"de", "es"}
    assert [planned.fallbacks for planned in (first, second, third)] == [{}] * 3


def test_the_program_of_a_removed_model_is_released() -> None:
    planner = FlowPlanner(PATIENT_S)
    snapshot = fleet(region("de", offered(10.0), offered(10.0, model="n"), models=("m", "n")))
    planned = decided(snapshot, planner=planner)
    shapes = {flows.problem.shape.models: weakref.ref(flows.problem.shape.permitted) for flows in planned.answers}
    smaller = msgspec.structs.replace(POLICY, models={"m": POLICY.models["m"]})
    planned = decided(snapshot, planner=planner, policy=smaller)
    assert [flows.problem.shape.models for flows in planned.answers] == [("m",)]
    assert [models for models, shape in shapes.items() if shape() is not None] == []


def test_tables_never_name_a_region_that_policy_has_no_more() -> None:
    planner = FlowPlanner(PATIENT_S)
    snapshot = fleet(region("de", offered(10.0)), region("es", slots=1), region("us"))
    first = decided(snapshot, planner=planner)
    assert "us" in table_servers(first)
    smaller = msgspec.structs.replace(POLICY, regions={name: POLICY.regions[name] for name in ("de", "es")})
    second = planner.plan(tick_input(smaller, snapshot, first.plans, now=0.5, elapsed_s=0.5))
    assert table_servers(second) == {"es"}


def table_servers(planned: PlanResult) -> set[str]:
    entries = [entry for plan in planned.plans.values() for entry in plan.classes]
    return {arc.server for entry in entries for way in entry.failover_tables for arc in way.arcs}
