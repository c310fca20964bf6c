"""The planner in a closed loop on a virtual clock: after a step of demand, each share reverses at most once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.forecasting.forecast import Forecaster
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.plan import RegionPlan
from penstock.planning.share_change_limit import DEADBAND
from penstock.planning.share_moves import Key
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from tests.support.examples import examples
from tests.support.planner_calls import tick_input

TICK_S = 0.5
STEP_AT_S = 20.0
ENDS_AT_S = 50.0
PATIENT_S = 30.0
NAMES = ("a", "b", "c")
ANYWHERE, BLOC = NAMES, ("a", "b")
POLICY = Policy(
    regions={
        "a": Region("a", "DE", 50.1, 8.7),
        "b": Region("b", "ES", 40.4, -3.7, cost_per_gpu_hour=1.5),
        "c": Region("c", "US", 38.9, -77.0),
    },
    models={"m": Model("m")},
    tenants={},
    residency=(),
    spillover=Spillover(target_utilisation=0.8, step_per_s=0.25),
)
Rates = dict[Key, float]


def keys() -> list[Key]:
    return [Key(origin, "m", residency_class(frozenset(where)).name) for origin in NAMES for where in (ANYWHERE, BLOC)]


def snapshot(rates: Rates, reported_at: float) -> Snapshot:
    """The reports of the regions at that time."""
    members = {residency_class(frozenset(where)).name: where for where in (ANYWHERE, BLOC)}
    agents = {}
    for name in NAMES:
        offered = tuple(
            DemandReport("m", key.residency, members[key.residency], rate)
            for key, rate in rates.items()
            if key.origin == name
        )
        report = AgentReport(name, "1", 1, 1, reported_at, (PoolReport("m", 4, 4, 100, 0, 1.0),), offered)
        agents[name, "1"] = HeldReport(report, reported_at)
    return Snapshot(agents, dict.fromkeys(NAMES, RegionHealth(RegionState.HEALTHY)))


def run(before: Rates, after: Rates, delay_s: float, horizon_s: float | None) -> list[dict[tuple[Key, str], float]]:
    """Shares by (key, server), tick by tick."""
    planner, forecaster = FlowPlanner(PATIENT_S), Forecaster()
    plans: dict[str, RegionPlan] = {}
    ticks: list[dict[tuple[Key, str], float]] = []
    for tick in range(int(ENDS_AT_S / TICK_S)):
        now = tick * TICK_S
        seen = after if now - delay_s >= STEP_AT_S else before
        forecaster.observe(seen, now)
        ahead = forecaster.ahead(now, horizon_s) if horizon_s is not None else {}
        plans = planner.plan(
            tick_input(
                POLICY,
                snapshot(seen, now - delay_s),
                plans,
                now=now,
                epoch=1,
                generation=tick,
                elapsed_s=TICK_S,
                # The planner discounts old reports, so there is no forecast where reports are old.
                forecast_per_s=ahead if delay_s <= 2.0 else {},
            )
        ).plans
        ticks.append(
            {
                (Key(origin, class_plan.model, class_plan.residency), arc.server): arc.share
                for origin, plan in plans.items()
                for class_plan in plan.classes
                for arc in class_plan.arcs
            }
        )
    return ticks


def reversals(series: list[float]) -> int:
    """Count the reversals of a series, ignoring moves within the deadband."""
    turns, direction, extreme = 0, 0, series[0]
    for value in series[1:]:
        if abs(value - extreme) <= DEADBAND / 2 and (value - extreme) * direction <= 0:
            continue
        heading = 1 if value > extreme else -1
        turns += direction == -heading
        direction, extreme = heading, value
    return turns


rates = st.lists(st.floats(0.5, 60.0), min_size=6, max_size=6).map(
    lambda values: dict(zip(keys(), values, strict=True))
)


@given(rates, rates, st.sampled_from((0.0, 2.0, 10.0)), st.sampled_from((None, 10.0)))
@settings(max_examples=examples(15), deadline=None)
def test_after_a_step_each_share_reverses_at_most_once(
    before: Rates, after: Rates, delay_s: float, horizon_s: float | None
) -> None:
    ticks = run(before, after, delay_s, horizon_s)
    settled = int(STEP_AT_S / TICK_S) - 1
    for arc in {arc for shares in ticks for arc in shares}:
        series = [shares.get(arc, 0.0) for shares in ticks[settled:]]
        assert reversals(series) <= 1, (arc, series)


@given(rates, rates)
@settings(max_examples=examples(10), deadline=None)
def test_after_a_step_the_plan_comes_to_rest(before: Rates, after: Rates) -> None:
    ticks = run(before, after, 0.0, None)
    assert ticks[-1] == ticks[-10]


def test_reversals_are_counted() -> None:
    assert reversals([0.0, 0.5, 1.0]) == 0
    assert reversals([0.0, 0.5, 0.4, 0.3]) == 1
    assert reversals([0.0, 0.5, 0.3, 0.6]) == 2
    assert reversals([0.5, 0.505, 0.5, 0.495, 0.5]) == 0
