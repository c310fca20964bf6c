"""The planners that a policy can select: each provides plans, failover tables, shortfalls and cost."""

from __future__ import annotations

from math import inf
from typing import get_args

import msgspec
import pytest

from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.policy.kinds.operations import ObjectiveDocument
from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.plan import RegionPlan
from penstock.planning.planner import PlanResult
from penstock.planning.registry import PLANNERS, planner
from penstock.planning.share_moves import Key
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.operations import Objective, PlannerKind
from penstock.policy.kinds.regions import Region
from penstock.policy.policy import Policy
from penstock.policy.policy_diff import diff
from penstock.policy.residency import residency_class
from penstock.what_if.demand_outcomes import Capacity, DemandGroup
from penstock.what_if.evaluation import evaluate_demand
from tests.support.control_planes import PLANET
from tests.support.planner_calls import tick_input

WHERE = ("de", "es", "us")
EVERYWHERE, IN_EU = residency_class(frozenset(WHERE)).name, residency_class(frozenset({"de", "es"})).name
POLICY = Policy(
    regions={
        "de": Region("de", "DE", 50.11, 8.68),
        "es": Region("es", "ES", 40.42, -3.7),
        "us": Region("us", "US", 38.9, -77.04, cost_per_gpu_hour=0.01),
    },
    models={"m": Model("m", expected_service_s=1.0)},
    tenants={},
    residency=(),
    objective=Objective(planner=PlannerKind.WATERFALL, latency_ms_per_cost=1e8),
)
BY_PRICE = msgspec.structs.replace(
    POLICY, objective=msgspec.structs.replace(POLICY.objective, planner=PlannerKind.LINEAR_PROGRAM)
)


def fleet(**per_s: float) -> Snapshot:
    """A hundred slots of one second each in every region, and demand of both classes in the given regions."""
    agents = {}
    for name in WHERE:
        rate = per_s.get(name, 0.0)
        demand = (DemandReport("m", EVERYWHERE, WHERE, rate), DemandReport("m", IN_EU, ("de", "es"), rate))
        pool = PoolReport("m", 4, 4, 100, 0, 1.0)
        agents[name, "1"] = HeldReport(AgentReport(name, "1", 1, 1, 0.0, (pool,), demand if rate else ()), 0.0)
    return Snapshot(agents, dict.fromkeys(WHERE, RegionHealth(RegionState.HEALTHY)))


def decided(
    by: WaterfallPlanner, snapshot: Snapshot, previous: dict[str, RegionPlan], now: float = 0.0, ahead: float = 0.0
) -> PlanResult:
    forecast = {Key("de", "m", residency): ahead for residency in (EVERYWHERE, IN_EU)}
    return by.plan(
        tick_input(
            POLICY,
            snapshot,
            previous,
            now=now,
            epoch=1,
            generation=1,
            elapsed_s=1.0,
            forecast_per_s=forecast if ahead else {},
        )
    )


def test_every_name_has_one_meaning_and_can_be_written() -> None:
    assert set(PLANNERS) == set(PlannerKind)
    written = get_args(ObjectiveDocument.model_fields["planner"].annotation)
    assert written == tuple(kind.value for kind in PlannerKind)
    assert type(planner(PlannerKind.WATERFALL, 1.0)) is WaterfallPlanner


@pytest.mark.parametrize("kind", PlannerKind)
def test_each_plans_for_every_region_with_failover_tables(kind: PlannerKind) -> None:
    by = planner(kind, inf)
    planned = by.plan(tick_input(POLICY, fleet(de=10.0), {}, epoch=3, generation=9, elapsed_s=1.0))
    assert planned.plans.keys() == POLICY.regions.keys()
    assert {(plan.epoch, plan.generation) for plan in planned.plans.values()} == {(3, 9)}
    for entry in planned.plans["de"].classes:
        assert {way.lost for way in entry.failover_tables} == {arc.server for arc in entry.arcs}
    assert planned.fallbacks == {}
    assert planned.cost.total > 0.0


def test_the_waterfall_reports_missing_capacity() -> None:
    result = decided(WaterfallPlanner(), fleet(de=95.0, es=30.0), {})
    assert {"de", "es"} <= {missing.lost for missing in result.shortfalls}


def test_the_waterfall_heeds_the_forecast() -> None:
    def at_home(planned: PlanResult) -> float:
        entry = planned.plans["de"].lookup("m", EVERYWHERE)
        assert entry is not None
        return {arc.server: arc.share for arc in entry.arcs}["de"]

    assert at_home(decided(WaterfallPlanner(), fleet(de=39.0), {})) == 1.0
    assert at_home(decided(WaterfallPlanner(), fleet(de=39.0), {}, ahead=60.0)) < 1.0


def test_its_tables_are_kept_from_tick_to_tick() -> None:
    by = WaterfallPlanner()
    first = decided(by, fleet(de=20.0), {})
    fuller = fleet(de=20.0, es=45.0)
    assert decided(by, fuller, first.plans, now=0.5).plans["de"].classes == first.plans["de"].classes
    anew = decided(WaterfallPlanner(), fuller, first.plans, now=0.5)
    assert anew.plans["de"].classes != first.plans["de"].classes


def test_what_if_plans_by_the_logic_that_policy_names() -> None:
    rooms = [Capacity(name, "m", 100, 1.0) for name in WHERE]
    tenants = compile_bundle(read_folder(PLANET)).tenants
    asked = [DemandGroup("de", "open", "DE", "m", 10.0)]
    served = {
        policy.objective.planner: evaluate_demand(msgspec.structs.replace(policy, tenants=tenants), asked, rooms)
        .demand_outcomes[0]
        .servers
        for policy in (POLICY, BY_PRICE)
    }
    assert served == {PlannerKind.WATERFALL: {"de": 1.0}, PlannerKind.LINEAR_PROGRAM: {"us": 1.0}}


def test_another_logic_is_a_change_of_policy() -> None:
    assert POLICY.digest() != BY_PRICE.digest()
    assert [str(change) for change in diff(POLICY, BY_PRICE)] == ['Objective planner: "waterfall" -> "linear_program"']


def test_a_bundle_that_names_an_unknown_planner_is_refused() -> None:
    files = dict(read_folder(PLANET))
    files["objective.yaml"] = "apiVersion: penstock/v1\nkind: Objective\nplanner: crystal_ball\n"
    with pytest.raises(PolicyRefused) as error:
        compile_bundle(files)
    (only,) = error.value.errors
    assert str(only) == "objective.yaml:3: planner: is not known; write 'linear_program' or 'waterfall'"
