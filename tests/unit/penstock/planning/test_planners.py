"""The linear program and its fallback: each provides plans, failover tables, shortfalls and cost."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.plan import RegionPlan
from penstock.planning.planner import Planner, PlanResult
from penstock.planning.share_moves import Key
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
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
    objective=Objective(latency_ms_per_cost=1e8),
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


@pytest.mark.parametrize("planner", [FlowPlanner(inf), WaterfallPlanner()])
def test_each_plans_for_every_region_with_failover_tables(planner: Planner) -> None:
    planned = planner.plan(tick_input(POLICY, fleet(de=10.0), {}, epoch=3, generation=9, elapsed_s=1.0))
    assert planned.plans.keys() == POLICY.regions.keys()
    assert {(plan.epoch, plan.generation) for plan in planned.plans.values()} == {(3, 9)}
    for entry in planned.plans["de"].classes:
        assert {way.lost for way in entry.failover_tables} == {arc.server for arc in entry.arcs}
    assert planned.fallbacks == {}
    assert planned.cost.total > 0.0


@pytest.mark.parametrize(
    ("priorities", "away"),
    [
        pytest.param({"de": (10, 180.0), "es": (0, 100.0)}, {"de": 80.0, "es": 0.0}, id="the higher one leaves"),
        pytest.param({"de": (0, 180.0), "es": (10, 100.0)}, {"de": 0.0, "es": 0.0}, id="the lower one stays"),
        pytest.param({"de": (0, 180.0), "es": (0, 100.0)}, {"de": 0.0, "es": 0.0}, id="equals stay"),
        pytest.param({"de": (10, 180.0), "es": (0, 30.0)}, {"de": 80.0, "es": 0.0}, id="beside room"),
        pytest.param({"de": (5, 250.0), "es": (0, 100.0), "us": (9, 1.0)}, {"de": 100.0, "es": 0.0}, id="of three"),
    ],
)
def test_high_priorities_leave_full_regions_for_regions_that_shed_lower_ones(
    priorities: dict[str, tuple[int, float]], away: dict[str, float]
) -> None:
    snapshot = fleet()
    for name, (priority, rate) in priorities.items():
        held = snapshot.agents[name, "1"]
        rows = (DemandReport("m", IN_EU, ("de", "es"), rate, priority=priority),)
        snapshot.agents[name, "1"] = replace(held, report=replace(held.report, demand=rows))
    planned = FlowPlanner(inf).plan(tick_input(POLICY, snapshot, {}, epoch=1, generation=1, elapsed_s=1e6))
    for name, expected in away.items():
        entry = planned.plans[name].lookup("m", IN_EU)
        assert entry is not None
        left = priorities[name][1] * sum(arc.share for arc in entry.arcs if arc.server != name)
        assert left == pytest.approx(expected, abs=1.0)


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
