"""The whole loop on a virtual clock, planner and agents: steps, flapping, loss and return, late and missing reports."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.health.region_health import RegionState
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.share_change_limit import DEADBAND
from penstock.planning.share_moves import Key
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from tests.property.test_planner_stability import reversals
from tests.support.closed_loop import TICK_S, Loop, Plan, World
from tests.support.examples import examples
from tests.support.planner_calls import plans_of

PATIENT_S = 30.0
RAMP_S = 10.0
SERVICE_S = 2.0
NAMES = ("a", "b", "c", "d")
ANYWHERE, BLOC = frozenset(NAMES), frozenset("abc")
RTT_MS = {
    "a": {"a": 0.0, "b": 12.0, "c": 25.0, "d": 90.0},
    "b": {"a": 12.0, "b": 0.0, "c": 20.0, "d": 95.0},
    "c": {"a": 25.0, "b": 20.0, "c": 0.0, "d": 80.0},
    "d": {"a": 90.0, "b": 95.0, "c": 80.0, "d": 0.0},
}
POLICY = Policy(
    regions={name: Region(name, "DE", 0.0, 0.0) for name in NAMES},
    models={"m": Model("m", expected_service_s=SERVICE_S)},
    tenants={},
    residency=(),
    rtt_ms=RTT_MS,
    failover=Failover(failback_ramp_s=RAMP_S),
)
DEMANDS = tuple((home, where) for home in NAMES for where in (ANYWHERE, BLOC) if home in where)
HOME_CLASSES = tuple(Key("a", "m", residency_class(where).name) for where in (ANYWHERE, BLOC))
HOME = Key("a", "m", residency_class(ANYWHERE).name)

PLANNERS: dict[str, Callable[[], Plan]] = {
    "flow": lambda: plans_of(FlowPlanner(PATIENT_S)),
    "waterfall": lambda: plans_of(WaterfallPlanner()),
}
planners = pytest.mark.parametrize("planner", PLANNERS)
delays = pytest.mark.parametrize("delay_s", [0.0, 2.0, 10.0])

Rates = dict[tuple[str, frozenset[str]], float]


def even(per_s: float, **others: float) -> Rates:
    """The same rate in every region, except for the clients of some."""
    return {(home, where): others.get(home, per_s) for home, where in DEMANDS}


def world(rates: Callable[[float], Rates], **more: object) -> World:
    return msgspec.structs.replace(World(POLICY, dict.fromkeys(NAMES, 40), SERVICE_S, rates), **more)


def series(loop: Loop, from_s: float) -> dict[tuple[Key, str], list[float]]:
    """Each share of the plan over the ticks."""
    every = {arc for tick in loop.ticks for arc in tick.shares}
    return {arc: [tick.shares.get(arc, 0.0) for tick in loop.ticks if tick.at >= from_s] for arc in every}


def moved_after(loop: Loop, at_s: float) -> float:
    """The largest difference between two values of a share after a time."""
    return max(max(shares) - min(shares) for shares in series(loop, at_s).values())


rate = st.floats(0.5, 8.0)


@given(
    st.tuples(*[rate] * len(DEMANDS)),
    st.dictionaries(st.sampled_from(DEMANDS), st.floats(0.5, 20.0), min_size=1, max_size=3),
    st.sampled_from((0.0, 2.0, 10.0)),
    st.sampled_from((0.1, 1.0)),
    st.booleans(),
)
@settings(max_examples=examples(15), deadline=None, derandomize=True)
def test_a_step_of_demand_reverses_each_share_at_most_once(
    before: tuple[float, ...], changed: Rates, delay_s: float, queueing_weight: float, survive_one_loss: bool
) -> None:
    rates = dict(zip(DEMANDS, before, strict=True))
    objective = Objective(queueing_weight=queueing_weight, survive_one_loss=survive_one_loss)
    policy = msgspec.structs.replace(POLICY, objective=objective)
    scenario = world(
        lambda at: rates | changed if at >= 15.0 else rates, policy=policy, report_delay_s=lambda at: delay_s
    )
    loop = Loop(scenario, plans_of(FlowPlanner(PATIENT_S))).run(45.0 + delay_s)
    for arc, shares in series(loop, 14.0).items():
        assert reversals(shares) <= 1, (arc, shares)


@planners
@delays
def test_after_a_step_of_demand_the_plan_comes_to_rest(planner: str, delay_s: float) -> None:
    """The plan comes to rest within the settling time of a moving mean of 3 s, plus the time of one reversal."""
    scenario = world(lambda at: even(5.0, a=15.0) if at >= 15.0 else even(5.0), report_delay_s=lambda at: delay_s)
    loop = Loop(scenario, PLANNERS[planner]()).run(65.0 + delay_s)
    assert moved_after(loop, 14.0) > 0.2
    assert moved_after(loop, 40.0 + delay_s) <= 3 * DEADBAND
    assert not [ended for ended in loop.ended if ended.served_by is None]


whole_rates = st.integers(1, 8).map(float)
"""Rates whose arrivals are evenly spaced, so that measured demand settles."""


@given(
    st.tuples(*[whole_rates] * len(DEMANDS)),
    st.dictionaries(st.sampled_from(DEMANDS), st.integers(1, 20).map(float), min_size=1, max_size=3),
    st.booleans(),
)
@settings(max_examples=examples(12), deadline=None, derandomize=True)
def test_after_any_step_to_a_steady_demand_the_plan_comes_to_rest(
    before: tuple[float, ...], changed: Rates, survive_one_loss: bool
) -> None:
    rates = dict(zip(DEMANDS, before, strict=True))
    policy = msgspec.structs.replace(POLICY, objective=Objective(survive_one_loss=survive_one_loss))
    scenario = world(lambda at: rates | changed if at >= 15.0 else rates, policy=policy)
    assert moved_after(Loop(scenario, plans_of(FlowPlanner(PATIENT_S))).run(65.0), 40.0) <= 3 * DEADBAND


@planners
@delays
def test_a_returning_region_gets_its_traffic_along_the_ramp(planner: str, delay_s: float) -> None:
    back_s = 30.0
    scenario = world(
        lambda at: even(5.0),
        up=lambda region, at: region != "a" or not 15.0 <= at < back_s,
        report_delay_s=lambda at: delay_s,
    )
    loop = Loop(scenario, PLANNERS[planner]()).run(back_s + delay_s + RAMP_S + 10.0)
    began = next(tick.at for tick in loop.ticks if tick.health["a"] is RegionState.RECOVERING)
    assert began - back_s <= delay_s + 4.0
    for tick in loop.ticks:
        for (_, server), share in tick.shares.items():
            if server == "a" and tick.health["a"] is RegionState.RECOVERING:
                assert share <= (tick.at - began) / RAMP_S + 1e-6
    home = dict(loop.share(HOME, "a"))
    assert min(share for at, share in home.items() if at >= began + RAMP_S + TICK_S) == 1.0
    half = [share for at, share in home.items() if abs(at - began - RAMP_S / 2) <= TICK_S]
    assert min(half) >= 0.35, "the ramp is followed from below as well"
    assert loop.served_at_home("a", back_s + delay_s, began + RAMP_S / 3) <= 0.35
    assert loop.served_at_home("a", began + RAMP_S + 2.0, loop.now - 1.0) >= 0.95


@planners
def test_a_region_with_only_a_prior_service_time_gets_its_traffic_back(planner: str) -> None:
    """The prior service time is seven times the others' measurements, so the region would appear full for ever."""
    regions = {name: msgspec.structs.replace(region, cost_per_gpu_hour=1.0) for name, region in POLICY.regions.items()}
    regions["a"] = msgspec.structs.replace(regions["a"], cost_per_gpu_hour=1.15)
    scenario = world(
        lambda at: even(2.0),
        policy=msgspec.structs.replace(POLICY, regions=regions),
        up=lambda region, at: region != "a" or not 15.0 <= at < 25.0,
        prior_s=7 * SERVICE_S,
    )
    loop = Loop(scenario, PLANNERS[planner]()).run(25.0 + RAMP_S + 12.0)
    assert loop.served_at_home("a", 25.0 + RAMP_S + 5.0, loop.now - 1.0) >= 0.95


@planners
@delays
def test_a_flapping_region_gets_no_more_than_a_ramp_that_just_began(planner: str, delay_s: float) -> None:
    """Each recovery starts a new ramp; only shares of the flapping region change."""
    flaps = (20.0, 50.0)
    scenario = world(
        lambda at: even(5.0),
        up=lambda region, at: region != "a" or not flaps[0] <= at < flaps[1] or at % 6.0 >= 3.0,
        report_delay_s=lambda at: delay_s,
    )
    loop = Loop(scenario, PLANNERS[planner]()).run(flaps[1] + delay_s + RAMP_S + 15.0)
    flapping = [tick for tick in loop.ticks if flaps[0] + delay_s + 3.0 <= tick.at < flaps[1] + delay_s]
    assert max(tick.shares.get((HOME, "a"), 0.0) for tick in flapping) <= 4.0 / RAMP_S
    assert not [ended for ended in loop.ended if ended.served_by is None]
    assert dict(loop.share(HOME, "a"))[loop.ticks[-1].at] == 1.0


def test_plans_carry_tables_for_losses_that_stay_within_residency_and_rarely_change() -> None:
    loop = Loop(world(lambda at: even(5.0, a=14.0)), plans_of(FlowPlanner(PATIENT_S))).run(60.0)
    classes = [entry for plan in loop.plans.values() for entry in plan.classes]
    members = {residency_class(where).name: where for where in (ANYWHERE, BLOC)}
    for entry in classes:
        assert {way.lost for way in entry.failover_tables} == {arc.server for arc in entry.arcs}
        for way in entry.failover_tables:
            takers = {arc.server for arc in way.arcs}
            assert takers <= members[entry.residency] - {way.lost}
            assert abs(sum(arc.share for arc in way.arcs) - 1.0) < 1e-9
    settled = [tick.at for tick in loop.ticks if tick.at >= 50.0]
    assert loop.changed(50.0) <= len(settled) / 4


@planners
def test_a_plan_outlives_the_silence_of_all_regions(planner: str) -> None:
    """A leader without any reports neither fails regions nor changes the plan."""
    scenario = world(lambda at: even(5.0, a=12.0), report_delay_s=lambda at: float("inf") if 20.0 <= at < 50.0 else 0.0)
    loop = Loop(scenario, PLANNERS[planner]()).run(65.0)
    assert moved_after(loop, 19.0) <= 2 * DEADBAND
    assert {state for tick in loop.ticks if tick.at >= 10.0 for state in tick.health.values()} == {RegionState.HEALTHY}


@planners
def test_a_failed_region_leaves_no_request_unserved(planner: str) -> None:
    """With reports 10 s late, agents choose other regions themselves; no request waits for a plan."""
    scenario = world(
        lambda at: even(3.0), up=lambda region, at: region != "a" or at < 20.0, report_delay_s=lambda at: 10.0
    )
    loop = Loop(scenario, PLANNERS[planner]()).run(60.0)
    assert not [ended for ended in loop.ended if ended.served_by is None]
    assert max(ended.waited_s for ended in loop.ended) < 1.0
    after = [ended for ended in loop.ended if ended.came_at >= 21.0]
    assert after
    assert {ended.served_by for ended in after} <= {"b", "c", "d"}


SHORT_S = 6.0
"""A surge that is over before a moving mean has seen all of it."""


def of_many_lengths(rng: Random) -> float:
    """A log-normal time (s) whose deviation is 1.6 times its mean, SERVICE_S but for the cut of the longest."""
    return min(6 * SERVICE_S, SERVICE_S * exp(rng.gauss(-0.72, 1.2)))


@pytest.mark.parametrize("seed", range(examples(8)))
def test_a_short_surge_of_mixed_requests_moves_nothing_afterwards(seed: int) -> None:
    """Neither long requests, which end last, nor the moving mean moves demand after the surge, nor without a surge."""
    began_s, slots = 30.0, 40
    steady = slots / SERVICE_S * 0.35 / 2
    prices = {name: msgspec.structs.replace(region, cost_per_gpu_hour=1.0) for name, region in POLICY.regions.items()}
    prices["a"] = msgspec.structs.replace(prices["a"], cost_per_gpu_hour=1.15)
    objective = Objective(latency_ms_per_cost=20_000, queueing_weight=0.1, change_penalty_ms=5)
    scenario = world(
        lambda at: even(steady, a=4 * steady) if began_s <= at < began_s + SHORT_S else even(steady),
        policy=msgspec.structs.replace(POLICY, regions=prices, objective=objective),
        slots=dict.fromkeys(NAMES, slots),
        draw_s=of_many_lengths,
    )
    loop = Loop(scenario, plans_of(FlowPlanner(PATIENT_S)), seed).run(70.0)
    at_home = [(tick.at, min(tick.shares.get((key, "a"), 0.0) for key in HOME_CLASSES)) for tick in loop.ticks]
    assert all(share == 1.0 for at, share in at_home if 10.0 <= at < began_s)
    assert all(share == 1.0 for at, share in at_home if at >= began_s + SHORT_S + 8.0)
