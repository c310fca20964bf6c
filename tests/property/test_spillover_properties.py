"""Spillover limits and orders in any world: residency takes precedence, and every planner observes them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.fleet.capacity import supply
from penstock.fleet.snapshot import demand
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.plan import RegionPlan
from penstock.planning.spillover_limits import bounds
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.kinds.spillover_and_failover import SpilloverLimit
from tests.support.examples import examples
from tests.support.planet import with_spillover_orders
from tests.support.planner_calls import tick_input
from tests.support.planner_worlds import MODELS, NAMES, World, worlds
from tests.support.written_out import PATIENT_S, assert_costs_what_is_written_out, optimum

EPSILON = 1e-6

some = st.frozensets(st.sampled_from(NAMES))
limits = st.builds(
    SpilloverLimit,
    st.sampled_from(("one", "two", "three")),
    some,
    st.frozensets(st.sampled_from(MODELS)),
    st.sampled_from((None, 0.2, 0.7, 2.0)),
    st.sampled_from((None, 0.0, 0.1, 0.5)),
)
orders = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(tuple), max_size=3
)


@st.composite
def limited_worlds(draw: st.DrawFn) -> World:
    """Any world, under a policy that limits and orders its spillover."""
    world = draw(worlds())
    world.policy = msgspec.structs.replace(
        with_spillover_orders(world.policy, draw(orders)),
        spillover_limits=tuple(draw(st.lists(limits, max_size=3))),
    )
    return world


def planned(planner: str, world: World, previous: dict[str, RegionPlan]) -> dict[str, RegionPlan]:
    policy, snapshot = world.policy, world.snapshot
    made = FlowPlanner(PATIENT_S) if planner == "flow" else WaterfallPlanner()
    return made.plan(tick_input(policy, snapshot, previous, elapsed_s=0.5)).plans


@pytest.mark.parametrize("planner", ["flow", "waterfall"])
@given(limited_worlds())
@settings(max_examples=examples(60))
def test_plans_stay_within_residency_and_sum_to_one(planner: str, world: World) -> None:
    plans = planned(planner, world, world.previous)
    for traffic in demand(world.snapshot, 0.0):
        entry = plans[traffic.origin].lookup(traffic.model, traffic.residency)
        if entry is None:
            continue
        assert {arc.server for arc in entry.arcs} <= traffic.regions
        assert set(entry.fallbacks) <= traffic.regions
        assert all(arc.server in traffic.regions for way in entry.failover_tables for arc in way.arcs)
        assert sum(arc.share for arc in entry.arcs) == pytest.approx(1.0)
        assert all(arc.share > 0.0 for arc in entry.arcs)


@pytest.mark.parametrize("planner", ["flow", "waterfall"])
@given(limited_worlds())
@settings(max_examples=examples(60))
def test_first_plans_keep_to_the_limits_where_another_region_can_serve(planner: str, world: World) -> None:
    plans = planned(planner, world, {})
    able = supply(world.policy, world.snapshot, 0.0)
    for traffic in demand(world.snapshot, 0.0):
        entry = plans[traffic.origin].lookup(traffic.model, traffic.residency)
        if entry is None:
            continue
        here = bounds(world.policy, traffic.origin, traffic.model)
        shares = {arc.server: arc.share for arc in entry.arcs}
        if any((name, traffic.model) in able for name in traffic.regions - here.over_price_cap):
            assert not shares.keys() & here.over_price_cap
        # On its failback ramp an origin serves no more than the ramp grants, whatever its limit is.
        if (
            traffic.origin in traffic.regions
            and (traffic.origin, traffic.model) in able
            and traffic.origin not in world.ramps
        ):
            assert 1.0 - shares.get(traffic.origin, 0.0) <= here.max_away + EPSILON


@given(limited_worlds())
@settings(max_examples=examples(60))
def test_no_plan_within_the_limits_is_cheaper(world: World) -> None:
    assert_costs_what_is_written_out(world)


@given(limited_worlds())
@settings(max_examples=examples(60))
def test_target_shares_are_within_the_limits(world: World) -> None:
    for problem in world.problems():
        flows, _ = optimum(problem)
        at_home = np.zeros(len(problem.demand))
        home = flows.pool == problem.origin[flows.key]
        at_home[flows.key[home]] = flows.per_s[home]
        kept = np.where(problem.capped & (problem.max_share[problem.origin] < 1.0), 0.0, problem.kept)
        assert (at_home >= kept * problem.demand - EPSILON * (1.0 + problem.demand)).all()
