"""The parts of the flow planner: distances, queueing, confinements, the solver, tables for losses."""

from __future__ import annotations

from math import inf
from random import Random

import numpy as np
import pytest

from lab.bench.planets import Planet, Size, planet
from penstock.fleet.capacity import supply
from penstock.fleet.snapshot import demand
from penstock.planning import failover_tables
from penstock.planning.failover_tables import compute_tables
from penstock.planning.linear_program.distances import Distances
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.linear_program.n_minus_one import (
    confinements,
    worst,
)
from penstock.planning.linear_program.plan_cost import evaluate
from penstock.planning.linear_program.problem import Problem
from penstock.planning.linear_program.problem_builder import ProblemBuilder
from penstock.planning.linear_program.solver import ModelSolver, OutOfTime, Unsolved
from penstock.planning.linear_program.waiting_cost import (
    BREAKS,
    pieces,
    waiting,
)
from penstock.planning.tick_input import in_force, planned_for
from tests.support.planet import with_bias
from tests.support.planner_calls import tick_input
from tests.support.written_out import WrittenOut, optimum

MAX_UNIONS, MAX_WAIT_S, PIECES = 64, 2.0, 7
"""As documented, and not imported: a test fails if a tuned constant changes."""

PATIENT_S = inf


def small(seed: int) -> Planet:
    return planet(Size(12, 9, 5, 1), seed)


def problem_of(world: Planet, seed: int = 0) -> Problem:
    snapshot = world.snapshot(Random(seed), 0.2)
    demands = planned_for(world.policy, demand(snapshot, 0.0))
    (problem,) = ProblemBuilder(world.policy).problems(demands, supply(world.policy, snapshot, 0.0), {})
    return problem


def test_distances_are_the_policys() -> None:
    policy = with_bias(small(1).policy, {"r0002": 40.0})
    policy.rtt_ms["r0000"] = {"r0001": 77.0, "elsewhere": 1.0}
    policy.rtt_ms["elsewhere"] = {"r0001": 1.0}
    distances = Distances(policy)
    some = frozenset(list(policy.regions)[::2])
    for origin in policy.regions:
        for server in policy.regions:
            at = distances.index[origin], distances.index[server]
            assert distances.apart_ms[at] == pytest.approx(policy.distance_ms(origin, server), abs=1e-9)
        for _ in range(2):
            assert distances.nearest_first(origin, some) == policy.nearest_first(origin, some)


def erlang_waiting(slots: int, utilisation: float) -> float:
    """Mean number waiting in M/M/n, exactly (Erlang C)."""
    load, blocking = slots * utilisation, 1.0
    for servers in range(1, slots + 1):
        blocking = load * blocking / (servers + load * blocking)
    waits = blocking / (1.0 - utilisation * (1.0 - blocking))
    return waits * utilisation / (1.0 - utilisation)


@pytest.mark.parametrize("slots", [1, 4, 20, 100])
@pytest.mark.parametrize("utilisation", [0.6, 0.8, 0.95])
def test_waiting_is_nearly_erlangs(slots: int, utilisation: float) -> None:
    approximated = waiting(np.array([utilisation]), np.array([float(slots)]))[0]
    assert approximated == pytest.approx(erlang_waiting(slots, utilisation), rel=0.15, abs=0.2)


def test_pieces_end_at_the_target_at_the_slots_and_nowhere_and_cost_ever_more() -> None:
    slots, service_s = np.array([0.0, 1.0, 16.0, 1000.0]), np.array([1.0, 2.0, 4.0, 8.0])
    widths, costs = pieces(slots, service_s, 0.8, 1.0)
    per_s = slots / service_s
    assert widths[:, : PIECES - 3].sum(axis=1) == pytest.approx(0.8 * per_s)
    assert widths[:, : PIECES - 1].sum(axis=1) == pytest.approx(per_s)
    assert widths[0].tolist() == [0.0] * PIECES
    assert np.isinf(widths[1:, -1]).all()
    assert (np.diff(costs[:, : len(BREAKS) - 1], axis=1) >= 0.0).all()
    assert costs.max() <= MAX_WAIT_S


def test_nested_classes_have_as_many_confinements_as_there_are_classes() -> None:
    permitted = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=bool)
    sets = confinements(permitted)
    assert sorted(sets.groups.sum(axis=1).tolist()) == [1, 1, 2, 4]
    assert sets.settled.tolist() == [False, False, False, True]


def test_unions_of_overlapping_classes_are_bounded() -> None:
    permitted = np.eye(20, dtype=bool)
    permitted[:, 0] = True
    assert len(confinements(permitted).groups) <= 20 * MAX_UNIONS


@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_costs_what_the_written_out_program_costs(seed: int) -> None:
    problem = problem_of(small(seed), seed)
    _, cost = optimum(problem)
    assert cost == pytest.approx(WrittenOut(problem).cost, rel=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_a_warm_solve_finds_the_optimum_of_a_cold_one(seed: int) -> None:
    world, warm = planet(Size(40, 12, 5, 1), seed), None
    builder, rng = ProblemBuilder(world.policy), Random(seed)
    for _ in range(6):
        snapshot = world.snapshot(rng, 0.3)
        demands = planned_for(world.policy, demand(snapshot, 0.0))
        (problem,) = builder.problems(demands, supply(world.policy, snapshot, 0.0), {})
        warm = warm or ModelSolver(problem)
        warm.solve(problem, PATIENT_S)
        assert warm.cost == pytest.approx(optimum(problem)[1], rel=1e-6)
        assert warm.cost == pytest.approx(evaluate(warm.solve(problem, PATIENT_S)).total, rel=1e-6)


def test_the_shape_stays_the_same_object_until_the_classes_change() -> None:
    world = small(3)
    snapshot = world.snapshot(Random(0), 0.1)
    able, demands = supply(world.policy, snapshot, 0.0), planned_for(world.policy, demand(snapshot, 0.0))
    builder = ProblemBuilder(world.policy)
    (first,), (second,) = builder.problems(demands, able, {}), builder.problems(dict(demands), able, {})
    (fewer,) = builder.problems(dict(list(demands.items())[:-1]), able, {})
    assert first.shape is second.shape
    assert fewer.shape is not second.shape


def test_an_interrupted_solve_continues_where_it_stopped() -> None:
    problem = problem_of(planet(Size(100, 30, 5, 1), 5))
    solver = ModelSolver(problem)
    with pytest.raises(OutOfTime):
        solver.solve(problem, 0.0)
    limit_s = 0.02
    while True:
        try:
            solver.solve(problem, limit_s)
        except OutOfTime:
            limit_s *= 1.1  # a generous limit for slow machines
        else:
            break
    assert solver.cost == pytest.approx(optimum(problem)[1], rel=1e-4)


def test_an_answer_that_is_not_optimal_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(small(1))
    solver = ModelSolver(problem)
    monkeypatch.setattr("penstock.planning.linear_program.solver.MAX_GAP", -1.0)
    with pytest.raises(Unsolved, match="duality gap"):
        solver.solve(problem, PATIENT_S)


@pytest.mark.parametrize("seed", range(3))
def test_failover_tables_are_permitted_alive_and_fit_where_the_plan_kept_room(seed: int) -> None:
    world = small(seed)
    snapshot = world.snapshot(Random(seed), 0.1)
    planned = FlowPlanner(PATIENT_S).plan(tick_input(world.policy, snapshot, {}, elapsed_s=0.5))
    (wanted,) = planned.answers
    tables = compute_tables([wanted.problem], planned.plans)
    demands = planned_for(world.policy, demand(snapshot, 0.0))
    entries = in_force(planned.plans, demands)
    load = dict(zip(wanted.problem.shape.regions, wanted.load_per_s.tolist(), strict=True))
    room = dict(zip(wanted.problem.shape.regions, wanted.problem.capacity_per_s.tolist(), strict=True))
    arriving: dict[str, dict[str, float]] = {}
    for key, entry in entries.items():
        permitted = demands[key]
        served = {arc.server: arc.share for arc in entry.arcs}
        others = permitted.regions & set(wanted.problem.shape.regions)
        assert {table.lost for table in tables.get(key, ())} == {name for name in served if others - {name}}
        for table in tables.get(key, ()):
            assert sum(arc.share for arc in table.arcs) == pytest.approx(1.0)
            for arc in table.arcs:
                assert arc.server in permitted.regions - {table.lost}
                amount = permitted.requests_per_s * served[table.lost] * arc.share
                arriving.setdefault(table.lost, {}).setdefault(arc.server, 0.0)
                arriving[table.lost][arc.server] += amount
    reported = {shortfall.lost for shortfall in planned.shortfalls}
    for lost, amounts in arriving.items():
        if lost not in reported:
            assert all(load[name] + amount <= room[name] * (1.0 + 1e-6) for name, amount in amounts.items())


def test_failover_tables_reach_as_far_as_they_must_however_few_regions_are_looked_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = planet(Size(12, 10, 4, 1), 1)
    snapshot = world.snapshot(Random(1), 0.0)
    planned = FlowPlanner(inf).plan(tick_input(world.policy, snapshot, {}, elapsed_s=1.0))
    problems = [answer.problem for answer in planned.answers]
    tables = compute_tables(problems, planned.plans)
    assert any(len(way.arcs) > 1 for ways in tables.values() for way in ways)
    monkeypatch.setattr(failover_tables, "NEAR", 1)
    assert compute_tables(problems, planned.plans) == tables


def test_the_planets_of_the_bench_are_worth_planning_for() -> None:
    problem = problem_of(planet(Size(30, 20, 5, 1), 1))
    at_home = np.bincount(problem.home, weights=problem.demand, minlength=len(problem.shape.pools))
    assert (at_home > 0.8 * problem.capacity_per_s).any()
    assert problem.demand.sum() < 0.8 * problem.capacity_per_s.sum()
    flow = np.zeros(problem.shape.permitted.shape)
    assert worst(confinements(problem.shape.permitted), flow, flow.sum(axis=0), problem.capacity_per_s).sum() == 0.0


def test_a_return_to_the_home_region_costs_a_tenth_of_another_change() -> None:
    problem = problem_of(small(1))
    keys = np.arange(len(problem.home))
    problem.held.planned[:] = True
    change_s = problem.change_s / problem.work
    home, elsewhere = problem.home, (problem.home + 1) % len(problem.shape.pools)
    assert problem.changing_s(keys, home) == pytest.approx(0.1 * change_s[home])
    assert problem.changing_s(keys, elsewhere) == pytest.approx(change_s[elsewhere])
    problem.held.planned[:] = False
    assert not problem.changing_s(keys, elsewhere).any(), "a new class has no plan to change"
