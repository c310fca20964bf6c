"""Plans for models that share slots: the slots of a capacity group count once."""

from __future__ import annotations

from math import inf

import msgspec
import pytest

from penstock.fleet.capacity import supply
from penstock.fleet.capacity_groups import MAX_GROUPS, SharedSlots, group_reports
from penstock.fleet.report import AgentReport, DemandReport, GroupReport, PoolReport
from penstock.fleet.snapshot import ReportVerdict, Snapshot, add_report, pools
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.planner import Planner
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.what_if.demand_outcomes import Capacity, DemandGroup
from penstock.what_if.evaluation import evaluate_demand
from tests.support.planner_calls import tick_input

EVERYWHERE = residency_class(frozenset({"x", "y"}))
POLICY = Policy(
    regions={"x": Region("x", "DE", 50.0, 8.0), "y": Region("y", "DE", 40.0, -3.0)},
    models={"a": Model("a"), "b": Model("b")},
    tenants={},
    residency=(),
    spillover=Spillover(target_utilisation=0.8),
    objective=Objective(survive_one_loss=True),
)


def report(region: str, demand: dict[str, float], agent: str = "1", slots: int = 10, b_s: float = 1.0) -> AgentReport:
    """The report of an agent with one endpoint, which serves both models."""
    both = PoolReport("a", 1, 1, slots, 0, 1.0), PoolReport("b", 1, 1, slots, 0, b_s)
    offered = tuple(DemandReport(model, EVERYWHERE.name, ("x", "y"), rate) for model, rate in demand.items())
    return AgentReport(region, agent, 1, 1, 0.0, both, offered, groups=(GroupReport(("a", "b"), 1, 1, slots, 0),))


def fleet(*reports: AgentReport) -> Snapshot:
    snapshot = Snapshot(health={name: RegionHealth(RegionState.HEALTHY) for name in POLICY.regions})
    for agent_report in reports:
        snapshot, verdict = add_report(snapshot, agent_report, 0.0, POLICY)
        assert verdict is ReportVerdict.ACCEPTED
    return snapshot


@pytest.mark.parametrize("planner", [FlowPlanner(inf), WaterfallPlanner()])
def test_demand_of_two_models_fills_their_slots_once(planner: Planner) -> None:
    snapshot = fleet(report("x", {"a": 6.0, "b": 6.0}), report("y", {}))
    plans = planner.plan(tick_input(POLICY, snapshot, {}, elapsed_s=1.0)).plans
    at_home = sum(6.0 * arc.share for entry in plans["x"].classes for arc in entry.arcs if arc.server == "x")
    assert at_home <= 8.01


def test_the_loss_of_a_region_lacks_slots_once() -> None:
    snapshot = fleet(report("x", {"a": 4.0, "b": 4.0}), report("y", {"a": 4.0, "b": 4.0}))
    shortfalls = FlowPlanner(inf).plan(tick_input(POLICY, snapshot, {}, elapsed_s=1.0)).shortfalls
    for lost in ("x", "y"):
        lacking = {shortfall.model: shortfall.slots for shortfall in shortfalls if shortfall.lost == lost}
        assert lacking == pytest.approx({"a": 3.0, "b": 3.0}, abs=0.01)


def test_overload_costs_the_same_after_a_capacity_group_is_gone() -> None:
    together, other = report("x", {"a": 1.0, "b": 30.0}), report("y", {})
    apart = msgspec.structs.replace(together, groups=())
    planner, tick = WaterfallPlanner(), tick_input(POLICY, fleet(apart, other), {}, elapsed_s=1.0)
    planner.plan(tick_input(POLICY, fleet(together, other), {}, elapsed_s=1.0))
    cost = planner.plan(tick).cost
    assert cost.no_room > 0.0
    assert cost == WaterfallPlanner().plan(tick).cost


def test_models_that_share_slots_have_one_speed_in_each_region() -> None:
    snapshot = fleet(report("x", {}, b_s=2.0), report("y", {}, b_s=6.0))
    able = supply(POLICY, snapshot, 0.0)
    assert able["x", "b"].service_s / able["x", "a"].service_s == pytest.approx(4.0)
    assert able["y", "b"].service_s / able["y", "a"].service_s == pytest.approx(4.0)
    assert [able[region, "b"].work for region in ("x", "y")] == pytest.approx([4.0, 4.0])
    assert able["x", "a"].own_slots == 0.0


def test_the_pools_of_a_region_with_shared_slots_are_of_one_agent() -> None:
    only_b = AgentReport("x", "2", 1, 1, 0.0, (PoolReport("b", 1, 1, 9, 0, 1.0),))
    seen = pools(fleet(report("x", {}), only_b), 0.0)
    assert {model: (pool.report.slots, len(pool.groups)) for (_, model), pool in seen.items()} == {
        "a": (10, 1),
        "b": (10, 1),
    }
    more = AgentReport("x", "2", 1, 1, 0.0, (PoolReport("b", 1, 1, 11, 0, 1.0),))
    assert {model for _, model in pools(fleet(report("x", {}), more), 0.0)} == {"b"}


@pytest.mark.parametrize(
    "groups",
    [
        (GroupReport(("b", "a"), 1, 1, 10, 0),),
        (GroupReport(("a",), 1, 1, 10, 0),),
        (GroupReport(("a", "z"), 1, 1, 10, 0),),
        (GroupReport(("a", "b"), 1, 2, 10, 0),),
        (GroupReport(("a", "b"), 1, 1, -1, 0),),
        (GroupReport(("a", "b"), 1, 1, 5, 0), GroupReport(("a", "b"), 1, 1, 5, 0)),
    ],
)
def test_a_report_with_impossible_groups_is_rejected(groups: tuple[GroupReport, ...]) -> None:
    wrong = msgspec.structs.replace(report("x", {}), groups=groups)
    assert add_report(Snapshot(), wrong, 0.0, POLICY) == (Snapshot(), ReportVerdict.IMPOSSIBLE)


def test_an_agent_reports_a_bounded_number_of_groups() -> None:
    many = [GroupReport((f"a{at:03d}", f"b{at:03d}"), 1, 1, at, 0) for at in range(MAX_GROUPS + 40)]
    groups = group_reports(many)
    assert len(groups) == MAX_GROUPS
    assert sum(group.slots for group in groups) == sum(group.slots for group in many)


def test_what_if_counts_shared_slots_once() -> None:
    shared = (SharedSlots(("a", "b"), 10),)
    policy = msgspec.structs.replace(
        POLICY, tenants={"t": Tenant("t", "open")}, objective=Objective(survive_one_loss=False)
    )
    capacity = [Capacity("x", model, 10, 1.0, shared) for model in ("a", "b")]
    demand = [DemandGroup("x", "t", "DE", model, 10.0) for model in ("a", "b")]
    evaluation = evaluate_demand(policy, demand, capacity)
    assert evaluation.totals.served_per_s == pytest.approx(10.0, rel=0.01)
    assert evaluation.totals.load == {"x": pytest.approx(1.0)}
    assert [sum(outcome.servers.values()) for outcome in evaluation.demand_outcomes] == pytest.approx(
        [0.5, 0.5], abs=0.01
    )
