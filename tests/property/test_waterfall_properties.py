"""Properties of every waterfall plan, for any fleet, demand and plan in force."""

from __future__ import annotations

from collections import defaultdict

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.plan import ClassPlan, RegionPlan
from penstock.planning.share_change_limit import moved_share, step_towards
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from tests.support.examples import examples
from tests.support.planner_calls import waterfall_plans as plan
from tests.support.planner_worlds import MODELS, NAMES, SERVING, TARGET, plans_before, subsets

EPS = 1e-3

rates = st.floats(0.0, 200.0, allow_nan=False)


class World(msgspec.Struct):
    policy: Policy
    snapshot: Snapshot
    demand: dict[tuple[str, str, frozenset[str]], float]
    """Requests per second, each holding its slot for one second."""
    usable: dict[tuple[str, str], float]
    """Slots up to the target by (region, model), where there is anything to plan for."""


@st.composite
def worlds(draw: st.DrawFn) -> World:
    coordinates = st.tuples(st.floats(-60, 60), st.floats(-179, 179))
    regions = {name: Region(name, "DE", *draw(coordinates)) for name in NAMES}
    policy = Policy(
        regions=regions,
        models={name: Model(name) for name in MODELS},
        tenants={},
        residency=(),
        spillover=Spillover(target_utilisation=TARGET, step_per_s=0.25),
    )
    keys = st.tuples(st.sampled_from(NAMES), st.sampled_from(MODELS), subsets)
    demand = draw(st.dictionaries(keys, rates, max_size=8))
    agents, health, usable = {}, {}, {}
    for name in NAMES:
        state = draw(st.sampled_from((*SERVING, RegionState.FAILED, RegionState.UNKNOWN)))
        health[name] = RegionHealth(state)
        pools = []
        for model in MODELS:
            slots = draw(st.integers(0, 100))
            ready = draw(st.integers(0, 2))
            pools.append(PoolReport(model, 2, ready, slots, 0, 1.0))
            if state in SERVING and ready:
                usable[name, model] = slots * TARGET
        offered = tuple(
            DemandReport(model, residency_class(where).name, tuple(sorted(where)), rate)
            for (origin, model, where), rate in demand.items()
            if origin == name
        )
        agents[name, "1"] = HeldReport(AgentReport(name, "1", 1, 1, 0.0, tuple(pools), offered), 0.0)
    return World(policy, Snapshot(agents, health), demand, usable)


def planned(world: World, previous: dict[str, RegionPlan], elapsed_s: float = 0.5) -> dict[str, RegionPlan]:
    return plan(world.policy, world.snapshot, previous, elapsed_s=elapsed_s)


def entries(world: World, plans: dict[str, RegionPlan]) -> list[tuple[frozenset[str], str, ClassPlan, float]]:
    """(permitted regions, origin, entry, rate) of every class that has an entry."""
    found = []
    for (origin, model, where), rate in world.demand.items():
        entry = plans[origin].lookup(model, residency_class(where).name)
        if entry is not None:
            found.append((where, origin, entry, rate))
    return found


def load(world: World, plans: dict[str, RegionPlan]) -> dict[tuple[str, str], float]:
    """Slots that the plan fills by (region, model)."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    for _, _, entry, rate in entries(world, plans):
        for arc in entry.arcs:
            total[arc.server, entry.model] += rate * arc.share
    return total


def homes(world: World, origin: str, model: str, where: frozenset[str]) -> str | None:
    """The nearest permitted region with capacity for the model."""
    usable = frozenset(name for name in where if (name, model) in world.usable)
    return next(iter(world.policy.nearest_first(origin, usable)), None)


@given(worlds(), plans_before())
def test_shares_sum_to_one(world: World, before: dict[str, RegionPlan]) -> None:
    for region_plan in planned(world, before).values():
        for entry in region_plan.classes:
            assert abs(sum(arc.share for arc in entry.arcs) - 1.0) < 1e-9
            assert all(arc.share > 0.0 for arc in entry.arcs)


@given(worlds(), plans_before())
def test_no_forbidden_region_is_in_arcs_or_fallbacks(world: World, before: dict[str, RegionPlan]) -> None:
    for where, _, entry, _ in entries(world, planned(world, before)):
        servers = [arc.server for arc in entry.arcs]
        assert where >= {*servers, *entry.fallbacks}
        assert len({*servers, *entry.fallbacks}) == len(servers) + len(entry.fallbacks)


@given(worlds(), plans_before())
def test_no_dead_region_gets_a_share_or_is_a_fallback(world: World, before: dict[str, RegionPlan]) -> None:
    for _, _, entry, _ in entries(world, planned(world, before)):
        assert all((arc.server, entry.model) in world.usable for arc in entry.arcs)
        assert all((name, entry.model) in world.usable for name in entry.fallbacks)


@given(worlds())
def test_every_servable_class_is_planned(world: World) -> None:
    plans = planned(world, {})
    for origin, model, where in world.demand:
        servable = homes(world, origin, model, where) is not None
        assert (plans[origin].lookup(model, residency_class(where).name) is not None) == servable


@given(worlds())
def test_no_region_passes_its_target_while_a_class_that_lives_there_has_room_elsewhere(world: World) -> None:
    plans = planned(world, {})
    filled = load(world, plans)
    for (region, model), amount in list(filled.items()):
        if amount <= world.usable[region, model] + EPS:
            continue
        stuck = [
            where
            for where, origin, entry, rate in entries(world, plans)
            if entry.model == model and rate > 0.0 and homes(world, origin, model, where) == region
        ]
        assert any(
            all(
                filled[name, model] >= world.usable[name, model] - EPS
                for name in where
                if (name, model) in world.usable
            )
            for where in stuck
        )


@given(worlds())
def test_home_serves_all_its_demand_if_it_can(world: World) -> None:
    plans = planned(world, {})
    living: dict[tuple[str, str], float] = defaultdict(float)
    for (origin, model, where), rate in world.demand.items():
        home = homes(world, origin, model, where)
        if home is not None:
            living[home, model] += rate
    for where, origin, entry, _ in entries(world, plans):
        home = homes(world, origin, entry.model, where)
        assert home is not None
        if living[home, entry.model] <= world.usable[home, entry.model]:
            assert [arc.server for arc in entry.arcs] == [home]


@given(worlds())
@settings(max_examples=examples(50))
def test_a_plan_in_force_under_the_same_demand_stays(world: World) -> None:
    once = planned(world, {})
    assert {name: region_plan.classes for name, region_plan in planned(world, once).items()} == {
        name: region_plan.classes for name, region_plan in once.items()
    }


tables = st.dictionaries(st.sampled_from(NAMES), st.floats(0.01, 1.0), min_size=1).map(
    lambda amounts: {name: amount / sum(amounts.values()) for name, amount in amounts.items()}
)


@given(tables, tables, st.floats(0.05, 1.0))
def test_steps_are_bounded_and_reach_the_target(
    before: dict[str, float], target: dict[str, float], largest: float
) -> None:
    shares = before
    for _ in range(25):
        stepped = step_towards(shares, target, largest, alive=NAMES)
        assert moved_share(shares, stepped) <= largest + 1e-5
        assert moved_share(stepped, target) <= moved_share(shares, target) + 1e-9
        assert abs(sum(stepped.values()) - 1.0) < 1e-9
        shares = stepped
    assert moved_share(shares, target) <= 0.02
    assert shares.keys() <= target.keys()


@given(tables, tables, st.sampled_from(NAMES))
def test_a_failed_region_never_keeps_its_share(before: dict[str, float], target: dict[str, float], dead: str) -> None:
    alive = set(NAMES) - {dead}
    wanted = {name: share for name, share in target.items() if name in alive}
    if wanted:
        assert step_towards(before, wanted, 0.01, alive).get(dead, 0.0) == 0.0
