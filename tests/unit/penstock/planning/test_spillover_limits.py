"""Limits and orders of spillover apply to every planner and to the agents' own decisions, and not to failover."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.overrides.override_effects import Interventions
from penstock.overrides.overrides import Override, OverrideKind
from penstock.planning.linear_program.distances import Distances
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.plan import Arc, ArcReason, ClassPlan, Closed, RegionPlan
from penstock.planning.spillover_limits import UNBOUNDED, bounds, kept_home
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover, SpilloverLimit
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, residency_class
from penstock.routing.decision import Decision, decide
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionRequest, RegionView
from tests.support.planet import MODEL, policy, with_bias, with_spillover_orders
from tests.support.planner_calls import tick_input, waterfall_plans

EVERYWHERE = ("eu-de", "eu-es", "us-east")
RESIDENCY = residency_class(frozenset(EVERYWHERE))
CHEAP = SpilloverLimit("cheap", origins=frozenset({"eu-de"}), max_cost_per_gpu_hour=2.0, source="spill.yaml:3")
LITTLE = SpilloverLimit("little", origins=frozenset({"eu-de"}), max_share=0.1)
NOTHING = SpilloverLimit("nothing", max_share=0.0)


def planet(*limits: SpilloverLimit, order: tuple[str, ...] = (), dear: str = "us-east") -> Policy:
    """Three regions; `dear` costs five times as much as the others."""
    plain = policy()
    regions = {
        name: msgspec.structs.replace(plain.regions[name], cost_per_gpu_hour=5.0 if name == dear else 1.0)
        for name in EVERYWHERE
    }
    limited = msgspec.structs.replace(
        plain,
        regions=regions,
        residency=(),
        spillover=Spillover(target_utilisation=0.8, step_per_s=1.0),
        spillover_limits=limits,
    )
    return with_spillover_orders(limited, {"eu-de": order})


def fleet(per_s: float, *, slots: int = 100, failed: tuple[str, ...] = ()) -> Snapshot:
    """All demand is at eu-de."""
    demanded = DemandReport(MODEL, RESIDENCY.name, EVERYWHERE, per_s)
    held = {}
    for name in EVERYWHERE:
        ready = 0 if name in failed else 1
        pool = PoolReport(MODEL, 1, ready, slots * ready, 0, 1.0)
        demand = (demanded,) if name == "eu-de" else ()
        held[name, "1"] = HeldReport(AgentReport(name, "1", 1, 1, 0.0, (pool,), demand), received_at=0.0)
    states = dict.fromkeys(EVERYWHERE, RegionState.HEALTHY)
    return Snapshot(held, {name: RegionHealth(state) for name, state in states.items()})


def flow(policy: Policy, snapshot: Snapshot, **more: Any) -> dict[str, RegionPlan]:
    planner = FlowPlanner(inf)
    return planner.plan(tick_input(policy, snapshot, {}, elapsed_s=1.0, **more)).plans


def waterfall(policy: Policy, snapshot: Snapshot, **more: Any) -> dict[str, RegionPlan]:
    return waterfall_plans(policy, snapshot, {}, elapsed_s=1.0, **more)


PLANNERS = pytest.mark.parametrize("plan", [flow, waterfall])
Plan = Callable[..., dict[str, RegionPlan]]


def shares(plans: dict[str, RegionPlan]) -> dict[str, float]:
    (entry,) = plans["eu-de"].classes
    return {arc.server: pytest.approx(arc.share, abs=1e-3) for arc in entry.arcs}


def views(*failed: str, credits: int = 5, wait_s: float = 2.0) -> dict[str, RegionView]:
    """Home is busy; the others are idle and have granted credits."""
    return {
        name: RegionView(
            RegionState.FAILED if name in failed else RegionState.HEALTHY,
            ready=True,
            expected_wait_s=wait_s if name == "eu-de" else 0.0,
            credits=0 if name == "eu-de" else credits,
        )
        for name in EVERYWHERE
    }


def chosen(policy: Policy, plan: RegionPlan | None, known: dict[str, RegionView], **more: Any) -> str | Reason:
    request = RegionRequest("eu-de", MODEL, RESIDENCY, **more)
    answer = decide(policy, plan, Mask(RESIDENCY), request, known, Random(1))
    return answer.choice.region if isinstance(answer, Decision) else answer.reason


@PLANNERS
def test_a_plan_sends_overflow_to_no_region_that_costs_more_than_the_ceiling(plan: Plan) -> None:
    assert "us-east" in shares(plan(planet(), fleet(220.0)))
    limited = shares(plan(planet(CHEAP), fleet(220.0)))
    assert limited.keys() == {"eu-de", "eu-es"}
    entry = plan(planet(CHEAP), fleet(220.0))["eu-de"].classes[0]
    assert "us-east" not in entry.fallbacks
    assert all(arc.server != "us-east" for way in entry.failover_tables for arc in way.arcs)


@PLANNERS
def test_without_a_cheaper_region_the_one_over_the_price_cap_takes_lost_demand(plan: Plan) -> None:
    assert shares(plan(planet(CHEAP), fleet(50.0, failed=("eu-de", "eu-es")))) == {"us-east": 1.0}


@PLANNERS
def test_no_more_of_the_demand_leaves_than_its_share_while_home_serves(plan: Plan) -> None:
    assert shares(plan(planet(), fleet(160.0))) != shares(plan(planet(LITTLE), fleet(160.0)))
    assert shares(plan(planet(LITTLE), fleet(160.0))) == {"eu-de": 0.9, "eu-es": 0.1}
    assert shares(plan(planet(LITTLE), fleet(85.0))) == {"eu-de": 80 / 85, "eu-es": 5 / 85}, "less is as it would be"
    assert shares(plan(planet(NOTHING), fleet(160.0))) == {"eu-de": 1.0}
    assert shares(plan(planet(LITTLE), fleet(50.0, failed=("eu-de",)))) == {"eu-es": 1.0}


def served(plans: dict[str, RegionPlan], snapshot: Snapshot, origin: str = "eu-de") -> dict[str, float]:
    """Requests per second of an origin's demand, by serving region."""
    demanded = {
        class_demand.residency: class_demand.requests_per_s
        for class_demand in snapshot.agents[origin, "1"].report.demand
    }
    served_per_s: dict[str, float] = {}
    for entry in plans[origin].classes:
        for arc in entry.arcs:
            served_per_s[arc.server] = served_per_s.get(arc.server, 0.0) + arc.share * demanded[entry.residency]
    return {server: round(per_s, 1) for server, per_s in served_per_s.items()}


@PLANNERS
def test_each_class_spills_up_to_its_limit_where_both_would(plan: Plan) -> None:
    """The cheapest plan without a limit moves one whole class; reduced to the limit, it leaves home overloaded."""
    snapshot, western = fleet(100.0), ("eu-de", "us-east")
    held = snapshot.agents["eu-de", "1"]
    western_demand = DemandReport(MODEL, residency_class(frozenset(western)).name, western, 100.0)
    both = msgspec.structs.replace(held.report, demand=(*held.report.demand, western_demand))
    snapshot.agents["eu-de", "1"] = HeldReport(both, 0.0)
    half = SpilloverLimit("half", origins=frozenset({"eu-de"}), max_share=0.5)
    assert served(plan(planet(half), snapshot), snapshot) == {"eu-de": 100.0, "eu-es": 50.0, "us-east": 50.0}


@PLANNERS
def test_others_make_room_for_what_may_not_leave_its_origin(plan: Plan) -> None:
    """Forty requests/s that enter in Spain would fit into Germany, if the requests that enter there could leave."""
    snapshot = fleet(160.0)
    demanded = DemandReport(MODEL, RESIDENCY.name, EVERYWHERE, 120.0)
    held = snapshot.agents["eu-es", "1"]
    snapshot.agents["eu-es", "1"] = HeldReport(msgspec.structs.replace(held.report, demand=(demanded,)), 0.0)
    plans = plan(planet(LITTLE, order=("us-east", "eu-es"), dear="eu-es"), snapshot)
    assert served(plans, snapshot) == {"eu-de": 144.0, "us-east": 16.0}
    assert served(plans, snapshot, "eu-es") == {"eu-es": 80.0, "us-east": 40.0}


def test_a_limit_holds_where_what_is_in_force_and_a_bias_are_elsewhere() -> None:
    biased = with_bias(planet(LITTLE), {"eu-de": 500.0})
    assert shares(flow(biased, fleet(50.0))) == {"eu-de": 0.9, "eu-es": 0.1}
    before = {
        "eu-de": RegionPlan(
            "eu-de", 1, 1, "", 0.0, (ClassPlan(MODEL, RESIDENCY.name, (Arc("eu-es", 1.0, ArcReason.HOME),), ()),)
        )
    }
    planned = FlowPlanner(inf).plan(tick_input(biased, fleet(50.0), before, elapsed_s=1.0))
    assert shares(planned.plans) == {"eu-de": 0.9, "eu-es": 0.1}


@PLANNERS
@pytest.mark.parametrize("limit", [LITTLE, NOTHING])
def test_no_limit_keeps_demand_at_an_origin_that_residency_forbids(plan: Plan, limit: SpilloverLimit) -> None:
    snapshot, elsewhere = fleet(50.0), ("eu-es", "us-east")
    demanded = DemandReport(MODEL, residency_class(frozenset(elsewhere)).name, elsewhere, 50.0)
    held = snapshot.agents["eu-de", "1"]
    snapshot.agents["eu-de", "1"] = HeldReport(msgspec.structs.replace(held.report, demand=(demanded,)), 0.0)
    assert shares(plan(planet(limit), snapshot)) == {"eu-es": 1.0}


@PLANNERS
def test_overflow_fills_regions_in_the_order_of_policy(plan: Plan) -> None:
    ordered = planet(order=("us-east", "eu-es"))
    assert shares(plan(ordered, fleet(100.0))) == {"eu-de": 0.8, "us-east": 0.2}
    assert shares(plan(planet(), fleet(100.0))) == {"eu-de": 0.8, "eu-es": 0.2}
    without_reserve = msgspec.structs.replace(ordered, objective=Objective(survive_one_loss=False))
    assert shares(plan(without_reserve, fleet(200.0))) == {"eu-de": 0.4, "us-east": 0.4, "eu-es": 0.2}


@PLANNERS
def test_what_an_operator_does_to_a_region_goes_before_its_limits(plan: Plan) -> None:
    drain = Override("1", OverrideKind.FAIL_OVER, "fire", "me", -1.0, region="eu-de")
    meant = Interventions([drain], 0.0, 0.0)
    assert "eu-de" not in shares(plan(planet(NOTHING), fleet(50.0), interventions=meant))
    assert plan(planet(CHEAP), fleet(1.0))["eu-de"].closed == ()


def test_agents_spend_no_credit_where_it_is_too_dear() -> None:
    lonely = {name: view for name, view in views().items() if name != "eu-es"}
    assert chosen(planet(), None, lonely) == "us-east"
    assert chosen(planet(CHEAP), None, lonely) == "eu-de"
    assert chosen(planet(CHEAP), None, lonely, overflow=True) is Reason.SATURATED
    assert chosen(planet(CHEAP), None, views()) == "eu-es"
    assert chosen(planet(CHEAP), None, views("eu-es"), tried={"eu-de": Reason.SATURATED}) is Reason.SATURATED
    request = RegionRequest("eu-de", MODEL, RESIDENCY, overflow=True)
    refusal = decide(planet(CHEAP), None, Mask(RESIDENCY), request, lonely, Random(1))
    assert isinstance(refusal, Refusal)
    assert ("us-east", Reason.SPILLOVER_LIMIT, "cheap (spill.yaml:3)") in [
        (rejection.what, rejection.reason, rejection.detail) for rejection in refusal.rejected
    ]


def test_agents_go_where_it_is_dear_when_all_else_is_lost() -> None:
    assert chosen(planet(CHEAP), None, views("eu-de", "eu-es")) == "us-east"
    assert chosen(planet(NOTHING), None, views("eu-de")) == "eu-es"


def test_agents_keep_a_limited_share_to_what_the_plan_gives() -> None:
    entry = ClassPlan(
        MODEL,
        RESIDENCY.name,
        (Arc("eu-de", 0.9, ArcReason.HOME), Arc("eu-es", 0.1, ArcReason.SPILLOVER)),
        ("us-east",),
    )
    plan = RegionPlan("eu-de", 1, 1, "", 0.0, (entry,))
    decision = decide(
        planet(LITTLE), plan, Mask(RESIDENCY), RegionRequest("eu-de", MODEL, RESIDENCY), views(), Random(1)
    )
    assert not isinstance(decision, Refusal)
    odds = {option.choice.region: option.probability for option in decision.options}
    assert odds == {
        "eu-de": 0.9,
        "eu-es": pytest.approx(0.1),
    }
    assert chosen(planet(LITTLE), plan, views(), overflow=True) is Reason.SATURATED


@PLANNERS
@pytest.mark.parametrize("kind", [OverrideKind.DRAIN, OverrideKind.FAIL_OVER])
def test_a_region_that_is_too_dear_goes_before_one_that_is_emptied(plan: Plan, kind: OverrideKind) -> None:
    meant = Interventions([Override("1", kind, "fire", "me", -1.0, region="eu-de")], 0.0, 0.0)
    assert shares(plan(planet(CHEAP), fleet(50.0, failed=("eu-es",)), interventions=meant)) == {"us-east": 1.0}
    gone = fleet(50.0, failed=("eu-es", "us-east"))
    assert shares(plan(planet(CHEAP), gone, interventions=meant)) == {"eu-de": 1.0}, "and that before none"


@PLANNERS
def test_a_region_that_is_too_dear_and_emptied_is_emptied(plan: Plan) -> None:
    meant = Interventions([Override("1", OverrideKind.DRAIN, "fire", "me", -1.0, region="us-east")], 0.0, 0.0)
    assert "us-east" not in shares(plan(planet(CHEAP), fleet(50.0, failed=("eu-es",)), interventions=meant))


@pytest.mark.parametrize("limit", [CHEAP, LITTLE])
def test_agents_take_what_a_limit_closes_before_what_is_emptied(limit: SpilloverLimit) -> None:
    emptied = RegionPlan(
        "eu-de", 1, 1, "", 0.0, (), closed=(Closed("eu-de", MODEL, True), Closed("eu-es", MODEL, True))
    )
    assert chosen(planet(limit), emptied, views()) == "us-east"
    assert chosen(planet(limit), emptied, views("us-east", wait_s=0.0)) == "eu-de"
    full = {"us-east": Reason.SATURATED}
    assert chosen(planet(limit), emptied, views(), tried=full) is Reason.SATURATED, "full is there"


def test_agents_spend_credits_in_the_order_of_policy() -> None:
    assert chosen(planet(), None, views(), overflow=True) == "eu-es"
    ordered = planet(order=("us-east",))
    assert chosen(ordered, None, views(), overflow=True) == "us-east"
    assert chosen(ordered, None, views()) == "us-east"
    nothing_there = views() | {"us-east": msgspec.structs.replace(views()["us-east"], credits=0)}
    assert chosen(ordered, None, nothing_there, overflow=True) == "eu-es"


def test_limits_are_of_their_origins_and_models_and_all_that_fit_hold() -> None:
    known = planet(CHEAP, LITTLE, SpilloverLimit("other", models=frozenset({"none"}), max_share=0.0))
    here = bounds(known, "eu-de", MODEL)
    assert (here.over_price_cap, here.max_away) == ({"us-east"}, 0.1)
    assert here.closed == {"us-east": "cheap (spill.yaml:3)", "eu-es": "little"}
    assert bounds(known, "eu-es", MODEL).max_away == 1.0
    assert bounds(planet(), "eu-de", MODEL) is UNBOUNDED
    assert bounds(planet(CHEAP, dear="eu-de"), "eu-de", MODEL).over_price_cap == set(), (
        "home is never too dear for itself"
    )


def test_the_planners_matrix_and_the_policy_agree_on_ordered_distances() -> None:
    known = with_bias(planet(order=("us-east", "eu-es")), {"us-east": 7.0})
    distances = Distances(known)
    for origin in EVERYWHERE:
        for server in EVERYWHERE:
            at = distances.apart_ms[distances.index[origin], distances.index[server]]
            assert at == pytest.approx(known.distance_ms(origin, server), rel=1e-6)
        assert distances.nearest_first(origin, RESIDENCY.regions) == known.nearest_first(origin, RESIDENCY.regions)
    assert known.nearest_first("eu-de", RESIDENCY.regions) == ("eu-de", "us-east", "eu-es")
    assert known.nearest_first("eu-es", RESIDENCY.regions) == ("eu-es", "eu-de", "us-east")


def test_regions_outside_an_order_follow_it_nearest_first() -> None:
    further = {"br-sao": Region("br-sao", "BR", -23.55, -46.63)}
    known = planet(order=("us-east",))
    known = msgspec.structs.replace(known, regions=known.regions | further)
    everywhere = frozenset(known.regions)
    assert known.nearest_first("eu-de", everywhere) == ("eu-de", "us-east", "eu-es", "br-sao")


@pytest.mark.parametrize(
    ("target", "max_away", "kept"),
    [
        ({"here": 0.6, "b": 0.3, "c": 0.1}, 0.4, {"here": 0.6, "b": 0.3, "c": 0.1}),
        ({"here": 0.6, "b": 0.3, "c": 0.1}, 0.2, {"here": 0.8, "b": 0.15, "c": 0.05}),
        ({"b": 1.0}, 0.25, {"here": 0.75, "b": 0.25}),
        ({"b": 1.0}, 0.0, {"here": 1.0}),
        ({"b": 0.75, "c": 0.5}, 1.0, {"b": 0.6, "c": 0.4}),
    ],
)
def test_at_most_a_share_of_the_demand_leaves(
    target: dict[str, float], max_away: float, kept: dict[str, float]
) -> None:
    assert kept_home(target, "here", max_away) == pytest.approx(kept)
