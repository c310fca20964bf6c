"""Slots that models share are counted once: by plans of either planner, by the N-1 reserve and by failover tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, combinations

import highspy
import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.fleet.capacity import Supply, supply
from penstock.fleet.capacity_groups import coupled_models, group_reports
from penstock.fleet.report import AgentReport, DemandReport, GroupReport, PoolReport
from penstock.fleet.slot_placement import SlotPlacement
from penstock.fleet.snapshot import ReportVerdict, Snapshot, add_report, demand
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.failover_tables import compute_tables
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.linear_program.plan_cost import evaluate
from penstock.planning.linear_program.problem import Problem
from penstock.planning.linear_program.problem_builder import ProblemBuilder
from penstock.planning.linear_program.solver import ModelSolver
from penstock.planning.planner import PlanResult
from penstock.planning.tick_input import planned_for
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.routing.spill_credits import AgentRank, Grants, GroupLoad, grant, shared_headroom
from tests.support.examples import examples
from tests.support.planner_calls import tick_input

NAMES = ("x", "y", "z")
MODELS = ("a", "b", "c")
TARGET = 0.8
PATIENT_S = 30.0
EPS = 0.1
"""Slots: classes without demand are planned for as if they had some, and shares below a millionth are dropped."""

Shares = dict[tuple[str, str, frozenset[str]], dict[str, float]]
"""By (origin, model, permitted regions) and region."""

few = settings(max_examples=examples(60))
model_sets = st.frozensets(st.sampled_from(MODELS), min_size=1)


def subsets(items: Iterable[str]) -> Iterable[frozenset[str]]:
    names = sorted(items)
    return map(frozenset, chain.from_iterable(combinations(names, size) for size in range(1, len(names) + 1)))


class World(msgspec.Struct):
    policy: Policy
    snapshot: Snapshot
    groups: dict[str, dict[frozenset[str], int]]
    """Slots by region and exact set of models."""
    demand: dict[tuple[str, str, frozenset[str]], float]

    def supply(self) -> dict[tuple[str, str], Supply]:
        return supply(self.policy, self.snapshot, 0.0)

    def slots(self, region: str, models: frozenset[str]) -> float:
        """Slots that any of the models may use."""
        return sum(slots for served, slots in self.groups[region].items() if served & models)

    def work(self, shares: Shares) -> dict[tuple[str, str], float]:
        """Slots that shares fill, by (region, model), at the planners' service times."""
        able, found = self.supply(), defaultdict[tuple[str, str], float](float)
        for key, table in shares.items():
            for server, share in table.items():
                found[server, key[1]] += self.demand[key] * share * able[server, key[1]].service_s
        return found

    def shares(self, result: PlanResult) -> Shares:
        found = {}
        for key in self.demand:
            entry = result.plans[key[0]].lookup(key[1], residency_class(key[2]).name)
            if entry is not None:
                found[key] = {arc.server: arc.share for arc in entry.arcs}
        return found


def report(
    name: str, groups: Mapping[frozenset[str], int], demand: tuple[DemandReport, ...], service_s: Mapping[str, float]
) -> AgentReport:
    """The report of an agent with one endpoint per capacity group."""
    endpoints = [
        GroupReport(tuple(sorted(models)), 1, 1, slots, 0) for models, slots in groups.items() if len(models) > 1
    ]
    pools = tuple(
        PoolReport(model, len(mine), len(mine), sum(mine), 0, service_s[model])
        for model in MODELS
        if (mine := [slots for models, slots in groups.items() if model in models])
    )
    return AgentReport(name, "1", 1, 1, 0.0, pools, demand, groups=group_reports(endpoints))


@st.composite
def worlds(draw: st.DrawFn, *, reserve: bool = False, max_rate: float = 40.0) -> World:
    policy = Policy(
        regions={
            name: Region(name, "DE", draw(st.floats(-60, 60)), draw(st.floats(-179, 179)), cost_per_gpu_hour=cost)
            for name, cost in zip(NAMES, (1.0, draw(st.sampled_from((0.5, 3.0))), 1.0), strict=True)
        },
        models={name: Model(name) for name in MODELS},
        tenants={},
        residency=(),
        spillover=Spillover(target_utilisation=TARGET),
        objective=Objective(survive_one_loss=reserve),
    )
    keys = st.tuples(st.sampled_from(NAMES), st.sampled_from(MODELS), st.frozensets(st.sampled_from(NAMES), min_size=1))
    demand = draw(st.dictionaries(keys, st.floats(0.1, max_rate), min_size=1, max_size=7))
    groups = {name: draw(st.dictionaries(model_sets, st.integers(1, 60), min_size=1, max_size=4)) for name in NAMES}
    snapshot = Snapshot(health={name: RegionHealth(RegionState.HEALTHY) for name in NAMES})
    for name in NAMES:
        offered = tuple(
            DemandReport(model, residency_class(where).name, tuple(sorted(where)), rate)
            for (origin, model, where), rate in demand.items()
            if origin == name
        )
        service_s = {model: draw(st.sampled_from((0.5, 1.0, 3.0))) for model in MODELS}
        snapshot, verdict = add_report(snapshot, report(name, groups[name], offered, service_s), 0.0, policy)
        assert verdict is ReportVerdict.ACCEPTED
    return World(policy, snapshot, groups, demand)


def problems(world: World) -> list[Problem]:
    wanted = planned_for(world.policy, demand(world.snapshot, 0.0))
    return ProblemBuilder(world.policy).problems(wanted, world.supply(), {})


def violations(
    world: World, work: Mapping[tuple[str, str], float], part: float
) -> dict[str, dict[frozenset[str], float]]:
    """By region, the load of each set of models in excess of this part of the slots that any of them may use."""
    return {
        region: {
            models: sum(work.get((region, model), 0.0) for model in models) - part * world.slots(region, models)
            for models in subsets(MODELS)
        }
        for region in NAMES
    }


class Yardstick:
    """A program that places demand on capacity groups one by one, and minimises the work past their target."""

    def __init__(self, world: World) -> None:
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        able = world.supply()
        loads: dict[tuple[str, frozenset[str]], list[tuple[int, float]]] = defaultdict(list)

        def column(cost: float) -> int:
            highs.addCol(cost, 0.0, highspy.kHighsInf, 0, [], [])
            return int(highs.getNumCol() - 1)

        def row(lower: float, upper: float, entries: list[tuple[int, float]]) -> None:
            at, values = np.array([c for c, _ in entries], np.int32), np.array([v for _, v in entries], float)
            highs.addRow(lower, upper, len(entries), at, values)

        for (_, model, where), rate in world.demand.items():
            parts = []
            for region in where:
                for models in world.groups[region]:
                    if model in models:
                        parts.append(column(0.0))
                        loads[region, models].append((parts[-1], able[region, model].service_s))
            if parts:
                row(rate, rate, [(part, 1.0) for part in parts])
        for (region, models), entries in loads.items():
            unit_s = max(able[region, model].service_s / able[region, model].work for model in models)
            past = column(1.0 / unit_s)
            row(-highspy.kHighsInf, TARGET * world.groups[region][models], [*entries, (past, -1.0)])
        highs.run()
        self.past_target_per_s = float(highs.getInfo().objective_function_value)


@given(worlds())
@few
def test_no_plan_gives_any_set_of_models_more_than_the_groups_that_serve_them(world: World) -> None:
    result = FlowPlanner(PATIENT_S).plan(tick_input(world.policy, world.snapshot, {}, elapsed_s=1e9))
    assert not result.fallbacks
    found = violations(world, world.work(world.shares(result)), TARGET)
    if Yardstick(world).past_target_per_s < 1e-6:
        assert all(over <= EPS for by_set in found.values() for over in by_set.values())
    lacking = sum(short.slots for short in result.shortfalls if short.lost is None)
    assert lacking == pytest.approx(sum(max(0.0, *by_set.values()) for by_set in found.values()), abs=EPS)


@given(worlds())
@few
def test_the_flow_planner_uses_all_free_capacity(world: World) -> None:
    """The price of work past the target exceeds all other prices, so the planner minimises that work."""
    past, able = 0.0, world.supply()
    for problem in problems(world):
        flows = ModelSolver(problem).solve(problem, PATIENT_S)
        assume(evaluate(flows).no_room == 0.0)
        over = flows.load_per_s - TARGET * problem.capacity_per_s
        # A unit of the problem is a request of its first model; the supply may include models without demand.
        unit = next(
            able[name, problem.shape.models[0]].work for name in NAMES if (name, problem.shape.models[0]) in able
        )
        past += float(np.maximum(0.0, over).sum()) * unit
    assert past <= Yardstick(world).past_target_per_s + EPS


@given(worlds())
@few
def test_the_waterfall_passes_the_target_only_with_demand_that_fits_nowhere(world: World) -> None:
    result = WaterfallPlanner().plan(tick_input(world.policy, world.snapshot, {}, elapsed_s=1e9))
    able, shares = world.supply(), world.shares(result)
    found = violations(world, world.work(shares), TARGET)

    def has_room(region: str, model: str) -> bool:
        return all(over < -EPS for models, over in found[region].items() if model in models)

    for region, by_set in found.items():
        worst = max(by_set, key=lambda models: by_set[models] - 1e-6 * len(models))
        if by_set[worst] > EPS:
            assert any(
                region in table
                and model in worst
                and not any(has_room(name, model) for name in where if (name, model) in able)
                for (_, model, where), table in shares.items()
            )


def missing_at_loss(world: World, shares: Shares, lost: str) -> float:
    """Slots that do not fit after a loss while all other work stays in its region: Hall's condition over all groups."""
    able = world.supply()
    unit_s = {at: capacity.service_s / capacity.work for at, capacity in able.items()}
    groups = [(region, models) for region in NAMES if region != lost for models in world.groups[region]]
    stays: dict[tuple[str, str], float] = defaultdict(float)
    moves: dict[tuple[str, frozenset[str]], float] = defaultdict(float)
    for (origin, model, where), table in shares.items():
        for server, share in table.items():
            units = world.demand[origin, model, where] * share * able[server, model].work
            if server == lost:
                moves[model, where - {lost}] += units
            else:
                stays[server, model] += units
    worst = 0.0
    for inside in chain.from_iterable(combinations(groups, size) for size in range(len(groups) + 1)):
        chosen = set(inside)

        def confined(model: str, regions: Iterable[str], chosen: set[tuple[str, frozenset[str]]] = chosen) -> bool:
            return all((region, models) in chosen for region, models in groups if region in regions and model in models)

        wanted = sum(units for (model, where), units in moves.items() if confined(model, where))
        wanted += sum(units for (region, model), units in stays.items() if confined(model, (region,)))
        room = sum(
            world.groups[region][models] / max(unit_s[region, model] for model in models) for region, models in chosen
        )
        worst = max(worst, wanted - room)
    return worst


@given(worlds(reserve=True, max_rate=12.0))
@few
def test_no_loss_lacks_more_than_the_plan_reports(world: World) -> None:
    result = FlowPlanner(PATIENT_S).plan(tick_input(world.policy, world.snapshot, {}, elapsed_s=1e9))
    assume(result.cost.no_room == 0.0)
    able, shares = world.supply(), world.shares(result)
    for lost in NAMES:
        if not any(region == lost for region, _ in able):
            continue
        slowest = max(capacity.service_s / capacity.work for capacity in able.values())
        reported = sum(
            short.requests_per_s * max(able[name, short.model].work for name in NAMES if (name, short.model) in able)
            for short in result.shortfalls
            if short.lost == lost
        )
        assert missing_at_loss(world, shares, lost) <= reported + EPS * slowest + 0.1


@given(worlds())
@few
def test_failover_tables_name_permitted_regions_that_serve_the_model(world: World) -> None:
    result = FlowPlanner(PATIENT_S).plan(tick_input(world.policy, world.snapshot, {}, elapsed_s=1e9))
    able = world.supply()
    tables = compute_tables((flows.problem for flows in result.answers), result.plans)
    permitted = {(o, m, residency_class(where).name): where for o, m, where in world.demand}
    for key, found in tables.items():
        for table in found:
            assert all(arc.server in permitted[key] and (arc.server, key.model) in able for arc in table.arcs)
            assert table.lost not in {arc.server for arc in table.arcs}
            assert sum(arc.share for arc in table.arcs) == pytest.approx(1.0)


@given(
    st.dictionaries(model_sets, st.integers(0, 30), min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from(MODELS), st.floats(0.0, 25.0)), max_size=12),
)
def test_the_ledger_places_all_that_fits_and_never_more(
    groups: dict[frozenset[str], int], placements: list[tuple[str, float]]
) -> None:
    order = list(groups)
    draws = {model: [at for at, models in enumerate(order) if model in models] for model in MODELS}
    placement = SlotPlacement([float(groups[models]) for models in order], draws)
    placed: dict[str, float] = dict.fromkeys(MODELS, 0.0)
    for model, amount in placements:
        room = min(
            sum(slots for served, slots in groups.items() if served & models) - sum(placed[name] for name in models)
            for models in subsets(MODELS)
            if model in models
        )
        took = placement.place(model, amount)
        assert took == pytest.approx(min(amount, room), abs=1e-6)
        placed[model] += took
        assert all(placement.free(at) >= -1e-9 for at in range(len(order)))


@given(
    st.dictionaries(model_sets, st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6),
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(MODELS), st.sampled_from("uvw"), st.integers(0, 30)), max_size=25
    ),
    st.dictionaries(st.sampled_from(MODELS), st.integers(0, 10)),
)
def test_no_sequence_of_grants_exceeds_what_is_free_in_any_set_of_groups(
    groups: dict[frozenset[str], tuple[int, int]], asked: list[tuple[int, str, str, int]], waiting: dict[str, int]
) -> None:
    loads = [GroupLoad(tuple(sorted(models)), used, slots) for models, (used, slots) in groups.items()]
    served = {model for models in groups for model in models}
    queued = {model: count for model, count in waiting.items() if model in served}
    held: dict[tuple[int, str], Grants] = {}
    for agent, model, origin, wanted in asked:
        if model not in served:
            continue
        others = {name: grants.outstanding(0.0) for (at, name), grants in held.items() if at == agent and name != model}
        headroom = shared_headroom(model, loads, queued, others, TARGET, AgentRank(agent, 2))
        held[agent, model], _ = grant(held.get((agent, model), Grants()), origin, wanted, headroom, 0.0, 1.0)
        for models in subsets(MODELS):
            granted = sum(grants.outstanding(0.0) for (_, name), grants in held.items() if name in models)
            free = sum(max(0, int(TARGET * slots) - used) for those, (used, slots) in groups.items() if those & models)
            assert granted <= free


@given(st.lists(model_sets, max_size=5))
def test_coupled_models_are_the_connected_ones(groups: list[frozenset[str]]) -> None:
    found = coupled_models(tuple(sorted(models)) for models in groups)
    for models in groups:
        assert len({found[model] for model in models}) == 1
    for model, others in found.items():
        assert model in others
        reached = {model}
        while more := {name for models in groups if models & reached for name in models} - reached:
            reached |= more
        assert reached == set(others)
