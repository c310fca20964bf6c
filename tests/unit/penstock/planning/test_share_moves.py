"""Traffic returns home at a rate that is bounded by origin, not by class."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from tests.support.planner_calls import waterfall_plans as plan
from tests.support.three_regions import REGIONS

STEP_PER_S = 0.25
POLICY = Policy(
    regions=REGIONS,
    models={"m": Model("m")},
    tenants={},
    residency=(),
    spillover=Spillover(target_utilisation=0.8, step_per_s=STEP_PER_S),
)
CLASSES = (("de", "es"), ("de", "us"), ("de", "es", "us"))


def name_of(regions: tuple[str, ...]) -> str:
    return residency_class(frozenset(regions)).name


def fleet(rates: dict[tuple[str, ...], float], *, slots_de: int = 1_000) -> Snapshot:
    demand = tuple(DemandReport("m", name_of(regions), regions, rate) for regions, rate in rates.items())
    held = {
        (name, "1"): HeldReport(
            AgentReport(name, "1", 1, 1, 0.0, (PoolReport("m", 4, 4, slots, 0, 1.0),), demand if name == "de" else ()),
            received_at=0.0,
        )
        for name, slots in (("de", slots_de), ("es", 1_000), ("us", 1_000))
    }
    return Snapshot(held, {name: RegionHealth(RegionState.HEALTHY) for name in POLICY.regions})


def away(at_home: dict[tuple[str, ...], float]) -> dict[str, RegionPlan]:
    """A plan with these shares at home and the rest of each class at the last region it may use."""
    entries = tuple(
        ClassPlan(
            "m",
            name_of(regions),
            tuple(
                Arc(server, share, why)
                for server, share, why in (
                    ("de", share, ArcReason.HOME),
                    (regions[-1], 1.0 - share, ArcReason.SPILLOVER),
                )
                if share > 0.0
            ),
            (),
        )
        for regions, share in at_home.items()
    )
    return {"de": RegionPlan("de", 1, 1, "", 0.0, entries)}


def at_home(plans: dict[str, RegionPlan]) -> dict[str, float]:
    return {
        entry.residency: sum(arc.share for arc in entry.arcs if arc.server == "de") for entry in plans["de"].classes
    }


def next_plan(
    snapshot: Snapshot, previous: dict[str, RegionPlan], *, policy: Policy = POLICY, elapsed_s: float = 1.0
) -> dict[str, RegionPlan]:
    return plan(policy, snapshot, previous, elapsed_s=elapsed_s)


def test_a_class_that_is_a_small_part_of_the_demand_comes_home_at_once() -> None:
    first, second, _ = CLASSES
    plans = next_plan(fleet({first: 2.0, second: 8.0}), away({first: 0.0, second: 1.0}))
    assert at_home(plans) == {name_of(first): 1.0, name_of(second): 1.0}


def test_a_class_that_is_most_of_the_demand_comes_home_by_as_much_traffic_as_may_move() -> None:
    first, second, _ = CLASSES
    plans = next_plan(fleet({first: 8.0, second: 2.0}), away({first: 0.0, second: 1.0}))
    assert at_home(plans)[name_of(first)] == pytest.approx(STEP_PER_S * 10.0 / 8.0)


def test_classes_that_come_home_together_share_what_may_move_by_how_far_they_have_to_go() -> None:
    first, second, third = CLASSES
    plans = next_plan(fleet(dict.fromkeys(CLASSES, 5.0)), away({first: 0.0, second: 0.5, third: 1.0}))
    assert at_home(plans) == pytest.approx({name_of(first): 0.5, name_of(second): 0.75, name_of(third): 1.0})


def test_a_class_with_hardly_any_demand_comes_home_like_another() -> None:
    """With the smallest positive rate, a fraction of the demand underflows to zero."""
    first, _, _ = CLASSES
    after = at_home(next_plan(fleet({first: 5e-324}), away({first: 0.0})))
    assert after[name_of(first)] == pytest.approx(STEP_PER_S)


def test_on_the_way_out_each_class_goes_by_the_step() -> None:
    first, second, _ = CLASSES
    snapshot = fleet({first: 2.0, second: 8.0}, slots_de=10)
    before = away({first: 1.0, second: 1.0})
    after = at_home(next_plan(snapshot, before))
    assert min(after.values()) >= 1.0 - STEP_PER_S - 1e-9
    assert min(after.values()) < 1.0


@given(
    st.tuples(*[st.floats(0.1, 50.0)] * 3),
    st.tuples(*[st.floats(0.0, 1.0)] * 3),
    st.floats(0.01, 1.0),
    st.floats(0.05, 2.0),
)
def test_no_more_of_an_origins_demand_comes_home_than_the_policy_lets_move(
    rates: tuple[float, ...], shares: tuple[float, ...], step_per_s: float, elapsed_s: float
) -> None:
    policy = msgspec.structs.replace(POLICY, spillover=Spillover(step_per_s=step_per_s))
    rate_of, before = dict(zip(CLASSES, rates, strict=True)), dict(zip(CLASSES, shares, strict=True))
    after = at_home(next_plan(fleet(rate_of), away(before), policy=policy, elapsed_s=elapsed_s))
    came = sum(rate_of[regions] * (after[name_of(regions)] - before[regions]) for regions in CLASSES)
    crumbs = 1e-4 * sum(rates)
    assert came <= step_per_s * elapsed_s * sum(rates) + crumbs
    assert all(after[name_of(regions)] >= before[regions] - 1e-4 for regions in CLASSES)
