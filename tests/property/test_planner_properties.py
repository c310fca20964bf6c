"""Invariants of every plan of the flow planner, and the optimality of its cost."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain, combinations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.fleet.snapshot import demand
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.n_minus_one import worst
from penstock.planning.linear_program.plan_cost import evaluate
from penstock.planning.linear_program.problem import Problem
from penstock.planning.linear_program.problem_builder import MIN_DEMAND_PER_S
from penstock.planning.plan import ClassPlan, RegionPlan
from penstock.planning.planner import PlanResult
from penstock.planning.share_moves import Key
from tests.support.examples import examples
from tests.support.planner_calls import tick_input, waterfall_plans
from tests.support.planner_worlds import NAMES, World, worlds
from tests.support.written_out import PATIENT_S, WrittenOut, assert_costs_what_is_written_out, optimum

EPS = 10 * MIN_DEMAND_PER_S
"""Requests per second: a class without demand is planned for as if it had some."""
few = settings(max_examples=examples(60))


def decided(world: World, planner: FlowPlanner | None = None, *, fresh: bool = False) -> PlanResult:
    previous = {} if fresh else world.previous
    return (planner or FlowPlanner(PATIENT_S)).plan(tick_input(world.policy, world.snapshot, previous, elapsed_s=0.5))


def entries(world: World, plans: dict[str, RegionPlan]) -> list[tuple[frozenset[str], str, ClassPlan, float]]:
    """(permitted regions, origin, entry, rate) of every class that has an entry."""
    found = []
    for traffic in demand(world.snapshot, 0.0):
        entry = plans[traffic.origin].lookup(traffic.model, traffic.residency)
        if entry is not None:
            found.append((traffic.regions, traffic.origin, entry, traffic.requests_per_s))
    return found


@given(worlds())
@few
def test_shares_sum_to_one(world: World) -> None:
    for region_plan in decided(world).plans.values():
        for entry in region_plan.classes:
            assert abs(sum(arc.share for arc in entry.arcs) - 1.0) < 1e-9
            assert all(arc.share > 0.0 for arc in entry.arcs)


@given(worlds())
@few
def test_no_forbidden_region_is_in_arcs_or_fallbacks(world: World) -> None:
    for where, _, entry, _ in entries(world, decided(world).plans):
        servers = [arc.server for arc in entry.arcs]
        assert where >= {*servers, *entry.fallbacks}
        assert len({*servers, *entry.fallbacks}) == len(servers) + len(entry.fallbacks)


@given(worlds())
@few
def test_no_dead_region_gets_a_share_or_is_a_fallback(world: World) -> None:
    for _, _, entry, _ in entries(world, decided(world).plans):
        assert all((arc.server, entry.model) in world.usable for arc in entry.arcs)
        assert all((name, entry.model) in world.usable for name in entry.fallbacks)


@given(worlds())
@few
def test_every_servable_class_is_planned(world: World) -> None:
    planned = decided(world)
    assert not planned.fallbacks
    for traffic in demand(world.snapshot, 0.0):
        servable = any((name, traffic.model) in world.usable for name in traffic.regions)
        assert (planned.plans[traffic.origin].lookup(traffic.model, traffic.residency) is not None) == servable


@given(worlds())
@few
def test_no_region_passes_its_target_while_one_that_serves_there_has_room_elsewhere(world: World) -> None:
    plans = decided(world, fresh=True).plans
    filled: dict[tuple[str, str], float] = defaultdict(float)
    for _, _, entry, rate in entries(world, plans):
        for arc in entry.arcs:
            filled[arc.server, entry.model] += rate * arc.share
    for where, _, entry, rate in entries(world, plans):
        for arc in entry.arcs:
            if rate * arc.share > EPS and filled[arc.server, entry.model] > world.usable[arc.server, entry.model] + EPS:
                assert all(
                    filled[name, entry.model] > world.usable[name, entry.model] - EPS
                    for name in where
                    if (name, entry.model) in world.usable and name not in world.ramps
                )


@given(worlds())
@few
def test_it_costs_what_the_written_out_program_costs(world: World) -> None:
    assert_costs_what_is_written_out(world)


@given(worlds())
@few
def test_it_never_costs_more_than_the_waterfall(world: World) -> None:
    waterfall = waterfall_plans(world.policy, world.snapshot, {}, elapsed_s=0.5)
    tables = {
        Key(origin, class_plan.model, class_plan.residency): {arc.server: arc.share for arc in class_plan.arcs}
        for origin, plan in waterfall.items()
        for class_plan in plan.classes
    }
    for problem in world.problems():
        flows, _ = optimum(problem)
        waterfall_flows = Flows.of_shares(problem, tables)
        # A plan omits shares below a millionth, and the price of demand without capacity is large.
        assert evaluate(flows).total <= evaluate(waterfall_flows).total * (1.0 + 1e-4) + 1e-4


@given(worlds(healthy=True, reserve=True, max_rate=15.0))
@few
def test_the_reserve_for_any_loss_is_the_largest_possible(world: World) -> None:
    for problem in world.problems(fresh=True):
        flows, _ = optimum(problem)
        sets = problem.shape.confinements
        missing = worst(sets, flows.by_class(), flows.load_per_s, problem.capacity_per_s).sum()
        assume(evaluate(flows).no_room == 0.0)
        best = WrittenOut(problem, weigh=False).missing_at_losses
        assert missing <= best + 1e-4 * (1.0 + best)


def missing_by_force(problem: Problem, flow: np.ndarray, lost: int) -> float:
    """Hall's condition over every collection of groups: demand that must leave `lost`, less free capacity."""
    groups = range(len(problem.shape.classes))
    spare = problem.capacity_per_s - flow.sum(axis=0)
    most = 0.0
    for some in chain.from_iterable(combinations(groups, size) for size in range(1, len(groups) + 1)):
        to = problem.shape.permitted[list(some)].any(axis=0)
        to[lost] = False
        most = max(most, flow[list(some), lost].sum() - spare[to].sum())
    return most


@given(worlds(healthy=True), st.data())
def test_demand_without_a_region_after_a_loss_is_found_in_any_plan(world: World, data: st.DataObject) -> None:
    for problem in world.problems(fresh=True):
        shape, capacity = problem.shape, problem.capacity_per_s
        wish = data.draw(
            st.lists(
                st.lists(st.floats(0.0, 1.0), min_size=len(NAMES), max_size=len(NAMES)),
                min_size=len(shape.classes),
                max_size=len(shape.classes),
            )
        )
        flow = np.array(wish)[:, : len(shape.pools)] * shape.permitted * capacity / len(shape.classes)
        missing = worst(shape.confinements, flow, flow.sum(axis=0), capacity)
        for lost in range(len(shape.pools)):
            assert abs(missing[lost] - missing_by_force(problem, flow, lost)) < 1e-6


@given(worlds(), worlds())
@few
def test_two_planners_with_the_same_ticks_return_the_same_plans(first: World, second: World) -> None:
    planner, twin = FlowPlanner(PATIENT_S), FlowPlanner(PATIENT_S)
    for world in (first, second, first):
        assert decided(world, planner).plans == decided(world, twin).plans


@given(worlds(), worlds())
@few
def test_earlier_ticks_do_not_raise_the_cost_of_a_plan(first: World, second: World) -> None:
    taught = FlowPlanner(PATIENT_S)
    decided(first, taught)
    warm, cold = decided(second, taught), decided(second)
    assert abs(warm.cost.total - cold.cost.total) <= 1e-5 * (1.0 + cold.cost.total)


@given(worlds())
@few
def test_a_plan_in_force_under_the_same_demand_stays_for_an_old_leader_and_a_new_one(world: World) -> None:
    planner = FlowPlanner(PATIENT_S)
    once = decided(world, planner, fresh=True).plans
    for leader in (planner, FlowPlanner(PATIENT_S)):
        then = leader.plan(tick_input(world.policy, world.snapshot, once, elapsed_s=0.5))
        again = then.plans
        for origin, plan in once.items():
            for before, after in zip(plan.classes, again[origin].classes, strict=True):
                assert {arc.server: arc.share for arc in before.arcs} == {arc.server: arc.share for arc in after.arcs}
