"""For any set of overrides residency holds, every class keeps a region, and lifting an override restores its effect."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.fleet.capacity import supply
from penstock.fleet.snapshot import demand
from penstock.health.region_health import RegionState
from penstock.overrides.override_effects import Interventions, narrowed
from penstock.overrides.overrides import Override, OverrideKind, lifted
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.plan import ArcReason, ClassPlan, RegionPlan
from penstock.planning.share_change_limit import moved_share
from penstock.planning.tick_input import planned_for
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.policy.residency import residency_class
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import RegionChoice, RegionView
from tests.support import planet
from tests.support.examples import examples
from tests.support.planner_calls import plans_of, waterfall_plans
from tests.support.planner_worlds import MODELS, NAMES, World, worlds

STEP = 0.125
RAMP_S = 4.0
few = settings(max_examples=examples(60))


@st.composite
def overrides(draw: st.DrawFn) -> Override:
    kind = draw(st.sampled_from(list(OverrideKind)))
    return Override(
        id=str(draw(st.integers(0, 1000))),
        kind=kind,
        reason="a test",
        author="tests",
        begins_at=draw(st.sampled_from((-20.0, -3.0, 0.0, 5.0))),
        region=None if kind is OverrideKind.FREEZE else draw(st.sampled_from(NAMES)),
        model=draw(st.sampled_from((None, None, *MODELS))),
        origin=draw(st.sampled_from((None, None, *NAMES))),
        value=draw(st.floats(0.0, 0.99)) if kind is OverrideKind.WEIGHT else None,
        last_resort=draw(st.booleans()),
        expires_at=draw(st.sampled_from((None, 0.0, -1.0, 10.0))),
    )


def planned(world: World, previous: dict[str, RegionPlan], meant: Interventions, greedy: bool) -> dict[str, RegionPlan]:
    plan = waterfall_plans if greedy else plans_of(FlowPlanner(30.0))
    return plan(
        world.policy,
        world.snapshot,
        previous,
        now=0.0,
        epoch=1,
        generation=1,
        elapsed_s=0.5,
        interventions=meant,
    )


@given(worlds(), st.lists(overrides(), max_size=6), st.booleans())
@few
def test_no_override_adds_a_region_to_a_class(world: World, some: list[Override], greedy: bool) -> None:
    meant = Interventions(some, RAMP_S, 0.0)
    plans = planned(world, world.previous, meant, greedy)
    for traffic in demand(world.snapshot, 0.0):
        entry = plans[traffic.origin].lookup(traffic.model, traffic.residency)
        if entry is None:
            continue
        named = {*(arc.server for arc in entry.arcs), *entry.fallbacks}
        assert named <= traffic.regions
        assert not meant.of(traffic.origin, traffic.model).closed & set(entry.fallbacks)
        assert abs(sum(arc.share for arc in entry.arcs) - 1.0) < 1e-9


@given(worlds(), st.lists(overrides(), max_size=6), st.booleans())
@few
def test_servable_demand_is_served_unless_overrides_forbid_it(world: World, some: list[Override], greedy: bool) -> None:
    meant = Interventions([msgspec.structs.replace(override, last_resort=True) for override in some], RAMP_S, 0.0)
    plans = planned(world, world.previous, meant, greedy)
    for traffic in demand(world.snapshot, 0.0):
        servable = any((name, traffic.model) in world.usable for name in traffic.regions)
        entry = plans[traffic.origin].lookup(traffic.model, traffic.residency)
        assert (entry is not None) == servable


@given(worlds(), st.lists(overrides(), max_size=6))
def test_narrowing_only_removes_regions(world: World, some: list[Override]) -> None:
    demands = planned_for(world.policy, demand(world.snapshot, 0.0))
    able = supply(world.policy, world.snapshot, 0.0)
    left = narrowed(demands, able, Interventions(some, RAMP_S, 0.0))
    assert left.keys() <= demands.keys()
    for key, traffic in left.items():
        assert traffic.regions
        assert traffic.regions <= demands[key].regions
        assert traffic.residency == residency_class(traffic.regions).name


@given(worlds(healthy=True), st.frozensets(st.sampled_from(NAMES), min_size=1), st.booleans())
@few
def test_drains_move_small_steps_until_nothing_is_left_and_lifting_brings_back_what_was(
    world: World, drained: frozenset[str], greedy: bool
) -> None:
    world.policy = msgspec.structs.replace(world.policy, failover=Failover(failback_ramp_s=RAMP_S))
    before = planned(world, {}, Interventions((), RAMP_S, 0.0), greedy)
    before = planned(world, before, Interventions((), RAMP_S, 0.0), greedy)
    some = [Override(name, OverrideKind.DRAIN, "a test", "tests", -100.0, region=name) for name in drained]
    meant = Interventions(some, RAMP_S, 0.0)
    plans = before
    for _ in range(20):
        after = planned(world, plans, meant, greedy)
        assert all(step <= STEP + 1e-5 for step in steps(plans, after, homeward=False))
        assert all(part <= STEP + 1e-5 for part in came_home(world, plans, after))
        plans = after
    for traffic in demand(world.snapshot, 0.0):
        entry = plans[traffic.origin].lookup(traffic.model, traffic.residency)
        if entry is not None and any((name, traffic.model) in world.usable for name in traffic.regions - drained):
            assert not drained & {arc.server for arc in entry.arcs}
    if greedy:
        for age_s in range(25):
            ended = [lifted(override, "tests", -age_s * 0.5) for override in some]
            plans = planned(world, plans, Interventions(ended, RAMP_S, 0.0), greedy)
        assert all(step <= 0.02 + 1e-5 for step in steps(before, plans))


def steps(before: dict[str, RegionPlan], after: dict[str, RegionPlan], *, homeward: bool = True) -> list[float]:
    """The shares of traffic that moved, by class; without `homeward`, not of classes whose share at home grows."""
    return [moved_share(*shares) for _, _, home, shares in changes(before, after) if homeward or not more(home, shares)]


def came_home(world: World, before: dict[str, RegionPlan], after: dict[str, RegionPlan]) -> list[float]:
    """The part of each origin's demand for a model that moved, in classes whose share at home grows."""
    rates = {
        (traffic.origin, traffic.model, traffic.residency): traffic.requests_per_s
        for traffic in demand(world.snapshot, 0.0)
    }
    asked: dict[tuple[str, str], float] = {}
    for (origin, model, _), per_s in rates.items():
        asked[origin, model] = asked.get((origin, model), 0.0) + per_s
    moved: dict[tuple[str, str], float] = {}
    for origin, class_plan, home, shares in changes(before, after):
        if more(home, shares):
            per_s = rates[origin, class_plan.model, class_plan.residency] * moved_share(*shares)
            moved[origin, class_plan.model] = moved.get((origin, class_plan.model), 0.0) + per_s
    return [per_s / asked[at] for at, per_s in moved.items() if asked[at] > 0.0]


Shares = tuple[dict[str, float], dict[str, float]]


def changes(
    before: dict[str, RegionPlan], after: dict[str, RegionPlan]
) -> Iterator[tuple[str, ClassPlan, str | None, Shares]]:
    """Each class with its origin, its home now, and its shares before and after."""
    for origin, plan in before.items():
        for class_plan in plan.classes:
            now = after[origin].lookup(class_plan.model, class_plan.residency)
            assert now is not None
            was, is_now = ({arc.server: arc.share for arc in entry.arcs} for entry in (class_plan, now))
            home = next((arc.server for arc in now.arcs if arc.why is ArcReason.HOME), None)
            yield origin, class_plan, home, (was, is_now)


def more(home: str | None, shares: Shares) -> bool:
    was, now = shares
    return home is not None and now.get(home, 0.0) > was.get(home, 0.0)


POLICY = planet.policy()
regions = st.sampled_from(list(POLICY.regions))
views = st.builds(
    RegionView,
    st.sampled_from(list(RegionState)),
    ready=st.booleans(),
    weight=st.sampled_from((0.0, 0.5, 1.0)),
    expected_wait_s=st.sampled_from((0.0, 10.0)),
    credits=st.integers(0, 2),
)


@given(
    st.frozensets(regions, min_size=1),
    st.dictionaries(regions, views),
    st.dictionaries(regions, st.booleans()),
    st.dictionaries(regions, st.sampled_from((Reason.SATURATED, Reason.UNREACHABLE)), max_size=1),
    st.dictionaries(regions, st.sampled_from((0.2, 1.0)), max_size=2),
    st.booleans(),
    st.integers(0, 9),
)
def test_an_agent_uses_a_closed_region_for_its_arcs_or_as_the_last_there_is_and_never_on_a_credit(
    permitted: frozenset[str],
    seen: dict[str, RegionView],
    closed: dict[str, bool],
    tried: dict[str, Reason],
    shares: dict[str, float],
    overflow: bool,
    seed: int,
) -> None:
    residency = residency_class(permitted)
    given_shares: Any = {name.replace("-", "_"): share for name, share in shares.items()}
    entry = planet.plan("eu-de", residency.name, **given_shares).classes[0] if shares else None
    answer = planet.choose_region(
        POLICY, "eu-de", residency, entry, seen, rng=Random(seed), tried=tried, overflow=overflow, closed=closed
    )
    if not isinstance(answer, RegionChoice) or answer.region not in closed:
        return
    assert answer.region in permitted
    dead = (RegionState.UNKNOWN, RegionState.FAILED, RegionState.DRAINING)
    others = [
        name
        for name in permitted - closed.keys() - tried.keys()
        if name in seen and seen[name].ready and seen[name].state not in dead
    ]
    assert answer.region in shares or (closed[answer.region] and not others)
    assert not (answer.spends_credit and others)
