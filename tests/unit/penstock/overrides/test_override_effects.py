"""The effect of overrides on plans: in small steps or at once, and back along the ramp."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec
import pytest

from penstock.fleet.report import DemandReport
from penstock.fleet.snapshot import HeldReport, Snapshot, demand, tick
from penstock.health.region_health import RegionHealth, RegionState
from penstock.overrides.override_effects import NO_CONSTRAINTS, Interventions, narrowed
from penstock.overrides.overrides import Override, lifted
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.plan import ArcReason, ClassPlan, Closed, RegionPlan
from penstock.policy.kinds.spillover_and_failover import Failover, Spillover
from penstock.policy.residency import residency_class
from tests.support import planet
from tests.support.override_builders import drain, drain_endpoint, fail_over, freeze, interventions, weight
from tests.support.planet import MODEL
from tests.support.planner_calls import plans_of, waterfall_plans
from tests.support.reports import offered, report

TICK_S = 0.5
STEP = 0.25 * TICK_S
POLICY = msgspec.structs.replace(
    planet.policy(), spillover=Spillover(step_per_s=0.25), failover=Failover(failback_ramp_s=10.0)
)
EU = ("eu-de", "eu-es")
EVERYWHERE = (*EU, "us-east")


class Fleet:
    """Three regions with a plan for each tick, on a virtual clock."""

    def __init__(self, plan: Callable[..., dict[str, RegionPlan]], *demand: DemandReport) -> None:
        self._plan = plan
        self.now = 1000.0
        self.demand = demand or (offered(10.0, *EU), offered(10.0, *EVERYWHERE))
        self.elsewhere: tuple[DemandReport, ...] = ()
        """What Madrid is asked for; `demand` is Frankfurt's."""
        self.overrides: tuple[Override, ...] = ()
        self.plans: dict[str, RegionPlan] = {}
        self.snapshot = Snapshot()
        self.lost: set[str] = set()
        self.silent: set[str] = set()
        """Origins whose reports do not arrive; other regions see that they are well."""
        for _ in range(3):
            self.tick()

    @property
    def interventions(self) -> Interventions:
        return Interventions(self.overrides, POLICY.failover.failback_ramp_s, self.now)

    def tick(self) -> None:
        self.now += TICK_S
        asked = {"eu-de": self.demand, "eu-es": self.elsewhere}
        agents = {
            (name, "one"): HeldReport(report(name, *asked.get(name, ())), self.now)
            for name in POLICY.regions
            if name not in self.lost | self.silent
        }
        health = {
            name: region_health if name not in self.lost else RegionHealth(RegionState.FAILED, self.now)
            for name, region_health in self.snapshot.health.items()
        }
        self.snapshot = tick(Snapshot(agents, health), self.now, POLICY, self.interventions.drained)
        self.plans = self._plan(
            POLICY,
            self.snapshot,
            self.plans,
            now=self.now,
            epoch=1,
            generation=1,
            elapsed_s=TICK_S,
            interventions=self.interventions,
        )

    def ticks(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.tick()

    def begin(self, override: Override) -> Override:
        override = msgspec.structs.replace(override, begins_at=self.now)
        self.overrides = (*self.overrides, override)
        return override

    def end(self, override: Override) -> None:
        self.overrides = tuple(
            lifted(override, "tests", self.now) if override is standing else standing for standing in self.overrides
        )

    def entry(self, *regions: str) -> ClassPlan | None:
        return self.plans["eu-de"].lookup(MODEL, residency_class(frozenset(regions or EU)).name)

    def shares(self, *regions: str) -> dict[str, float]:
        entry = self.entry(*regions)
        return {arc.server: arc.share for arc in entry.arcs} if entry is not None else {}


@pytest.fixture(params=["waterfall", "linear program"])
def planner(request: pytest.FixtureRequest) -> Callable[..., dict[str, RegionPlan]]:
    return waterfall_plans if request.param == "waterfall" else plans_of(FlowPlanner(inf))


def test_a_drain_leaves_by_small_steps_and_is_no_fallback(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner)
    fleet.begin(drain("eu-de"))
    for step in range(1, 8):
        fleet.tick()
        assert fleet.shares() == pytest.approx({"eu-de": 1.0 - step * STEP, "eu-es": step * STEP})
    fleet.tick()
    entry = fleet.entry(*EVERYWHERE)
    assert entry is not None
    (arc,) = entry.arcs
    assert (arc.server, arc.why, arc.detail) == ("eu-es", ArcReason.FAILOVER, "drain drain-eu-de of eu-de")
    assert entry.fallbacks == ("us-east",)
    assert fleet.snapshot.state("eu-de") is RegionState.DRAINING
    for region in POLICY.regions:
        assert fleet.plans[region].closed == (Closed("eu-de", MODEL, True),)


def test_a_fail_over_leaves_at_once(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner)
    fleet.begin(fail_over("eu-de"))
    fleet.tick()
    assert fleet.shares() == {"eu-es": 1.0}


def test_a_drained_region_that_fails_is_left_at_once(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner)
    fleet.begin(drain("eu-de"))
    fleet.tick()
    fleet.lost.add("eu-de")
    fleet.tick()
    assert fleet.snapshot.state("eu-de") is RegionState.FAILED
    # The region's agents are silent, so its slice is unchanged; no other slice contains the region.
    assert not [arc for name in ("eu-es", "us-east") for entry in fleet.plans[name].classes for arc in entry.arcs]


def test_lifting_returns_along_the_ramp_to_what_was(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner)
    before = fleet.plans["eu-de"].classes
    override = fleet.begin(drain("eu-de"))
    fleet.ticks(6.0)
    fleet.end(override)
    shares = []
    for _ in range(24):
        fleet.tick()
        ramp = (fleet.now - 1000.0 - 1.5 - 6.0) / 10.0
        share = fleet.shares().get("eu-de", 0.0)
        assert share <= ramp + 1e-9
        shares.append(share)
    assert shares == sorted(shares)
    assert fleet.plans["eu-de"].classes == before
    assert fleet.plans["eu-de"].closed == ()
    assert fleet.snapshot.state("eu-de") is RegionState.HEALTHY


def test_a_drain_that_is_lifted_half_way_turns_round_without_a_leap(
    planner: Callable[..., dict[str, RegionPlan]],
) -> None:
    fleet = Fleet(planner)
    override = fleet.begin(drain("eu-de"))
    fleet.ticks(2.0)
    fleet.end(override)
    for _ in range(30):
        share = fleet.shares().get("eu-de", 0.0)
        fleet.tick()
        assert abs(fleet.shares().get("eu-de", 0.0) - share) <= STEP + 1e-9
    assert fleet.shares() == {"eu-de": 1.0}


def test_a_new_leader_with_only_the_override_still_ramps(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner)
    override = fleet.begin(drain("eu-de"))
    fleet.ticks(6.0)
    fleet.end(override)
    fleet.ticks(2.0)
    fleet.snapshot = Snapshot()
    fleet.tick()
    assert fleet.snapshot.state("eu-de") is RegionState.HEALTHY
    assert fleet.shares()["eu-de"] == pytest.approx(0.25, abs=0.03)
    assert [arc.why for arc in fleet.entry().arcs if arc.server == "eu-es"] == [ArcReason.FAILBACK]  # type: ignore[union-attr]


def test_a_class_that_only_the_drained_region_serves_stays_there(
    planner: Callable[..., dict[str, RegionPlan]],
) -> None:
    fleet = Fleet(planner, offered(10.0, "eu-de"), offered(10.0, *EU))
    fleet.begin(drain("eu-de"))
    fleet.ticks(6.0)
    assert fleet.shares("eu-de") == {"eu-de": 1.0}
    assert fleet.shares() == {"eu-es": 1.0}


def test_it_stays_there_too_when_the_others_have_failed(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner)
    fleet.begin(drain("eu-de"))
    fleet.ticks(6.0)
    fleet.lost.add("eu-es")
    fleet.tick()
    assert fleet.shares() == {"eu-de": 1.0}
    assert fleet.shares(*EVERYWHERE) == {"us-east": 1.0}


def test_unless_the_drain_leaves_nothing_there(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner, offered(10.0, "eu-de"))
    fleet.begin(drain("eu-de", last_resort=False))
    fleet.tick()
    assert fleet.entry("eu-de") is None
    assert fleet.plans["eu-de"].closed == (Closed("eu-de", MODEL, False),)


@pytest.mark.parametrize(("override", "steps"), [(drain("eu-de"), 8), (fail_over("eu-de"), 1)])
def test_an_origin_that_is_silent_to_the_planner_leaves_a_closed_region_too(
    planner: Callable[..., dict[str, RegionPlan]], override: Override, steps: int
) -> None:
    fleet = Fleet(planner)
    fleet.elsewhere = (offered(10.0, *EU),)
    fleet.ticks(1.0)
    madrid = fleet.plans["eu-es"].classes[0]
    half = tuple(msgspec.structs.replace(madrid.arcs[0], server=name, share=0.5) for name in EU)
    fleet.silent.add("eu-es")
    fleet.plans["eu-es"] = msgspec.structs.replace(
        fleet.plans["eu-es"], classes=(msgspec.structs.replace(madrid, arcs=half, fallbacks=()),)
    )
    fleet.tick()
    assert fleet.plans["eu-es"].classes[0].arcs == half
    fleet.begin(override)
    for _ in range(steps):
        fleet.tick()
    assert {arc.server: arc.share for arc in fleet.plans["eu-es"].classes[0].arcs} == {"eu-es": 1.0}


def test_a_silent_origin_with_nowhere_else_to_go_keeps_the_closed_region(
    planner: Callable[..., dict[str, RegionPlan]],
) -> None:
    fleet = Fleet(planner, offered(10.0, "eu-de"))
    before = fleet.plans["eu-de"].classes
    fleet.silent.add("eu-de")
    fleet.begin(fail_over("eu-de"))
    fleet.ticks(2.0)
    assert fleet.plans["eu-de"].classes == before


def test_a_weight_holds_a_region_to_its_part(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner)
    override = fleet.begin(weight("eu-de", 0.3))
    fleet.tick()
    assert fleet.shares()["eu-de"] == pytest.approx(1.0 - STEP)
    fleet.ticks(4.0)
    assert fleet.shares() == pytest.approx({"eu-de": 0.3, "eu-es": 0.7})
    fleet.end(override)
    fleet.ticks(12.0)
    assert fleet.shares() == {"eu-de": 1.0}


def test_a_weight_of_the_only_region_takes_nothing_from_it(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner, offered(10.0, "eu-de"))
    fleet.begin(weight("eu-de", 0.3))
    fleet.ticks(3.0)
    assert fleet.shares("eu-de") == {"eu-de": 1.0}


def test_a_freeze_keeps_shares_while_demand_moves(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner)
    before = fleet.shares()
    override = fleet.begin(freeze())
    fleet.demand = (offered(150.0, *EU), offered(150.0, *EVERYWHERE))
    fleet.ticks(3.0)
    assert fleet.shares() == before
    fleet.end(override)
    fleet.ticks(3.0)
    assert fleet.shares() != before


def test_a_freeze_gives_way_to_an_emergency_and_to_a_drain(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner)
    fleet.begin(freeze())
    fleet.begin(drain("eu-de"))
    fleet.ticks(6.0)
    assert fleet.shares() == {"eu-es": 1.0}
    fleet.lost.add("eu-es")
    fleet.tick()
    assert fleet.shares(*EVERYWHERE) == {"us-east": 1.0}


def test_a_freeze_never_keeps_what_is_forbidden_by_now(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner, offered(10.0, *EU))
    fleet.begin(freeze())
    entry = msgspec.structs.replace(fleet.plans["eu-de"].classes[0], residency="eu-es")
    fleet.plans["eu-de"] = msgspec.structs.replace(fleet.plans["eu-de"], classes=(entry,))
    fleet.demand = (offered(10.0, "eu-es"),)
    fleet.tick()
    assert fleet.shares("eu-es") == {"eu-es": 1.0}


def test_a_drain_for_one_origin_or_model_affects_no_other(planner: Callable[..., dict[str, RegionPlan]]) -> None:
    fleet = Fleet(planner)
    fleet.begin(drain("eu-de", id="1", origin="us-east"))
    fleet.begin(drain("eu-de", id="2", model="another"))
    fleet.ticks(2.0)
    assert fleet.shares() == {"eu-de": 1.0}
    assert fleet.snapshot.state("eu-de") is RegionState.HEALTHY
    assert fleet.plans["eu-de"].closed == ()
    assert fleet.plans["us-east"].closed == (Closed("eu-de", MODEL, True),)
    fleet.begin(drain("eu-de", id="3", origin="eu-de"))
    fleet.ticks(6.0)
    assert fleet.shares() == {"eu-es": 1.0}


def test_a_class_that_is_narrowed_to_another_is_planned_as_that_one(
    planner: Callable[..., dict[str, RegionPlan]],
) -> None:
    fleet = Fleet(planner, offered(10.0, *EU), offered(10.0, "eu-es"))
    fleet.elsewhere = (offered(10.0, *EU),)
    fleet.ticks(1.0)
    fleet.begin(drain("eu-de", origin="eu-de"))
    fleet.ticks(6.0)
    assert fleet.shares() == {"eu-es": 1.0}


def test_narrowing_names_the_class_that_is_left() -> None:
    snapshot = Snapshot({("eu-de", "one"): HeldReport(report("eu-de", offered(1.0, *EU)), 0.0)})
    demands = dict(enumerate(demand(snapshot, 0.0)))
    able = {(name, MODEL) for name in POLICY.regions}
    assert narrowed(demands, able, interventions()) == demands
    (left,) = narrowed(demands, able, interventions(drain("eu-de"))).values()
    assert (left.regions, left.residency) == (frozenset({"eu-es"}), "eu-es")
    assert narrowed(demands, {("eu-de", MODEL)}, interventions(drain("eu-de"))) == {
        0: msgspec.structs.replace(demands[0], regions=frozenset(EU), residency="eu-de+eu-es")
    }


def test_drained_endpoints_are_in_the_slice_of_their_region_and_change_no_share() -> None:
    held = interventions(
        drain_endpoint("eu-de", "gpu-2", id="b"),
        drain_endpoint("eu-de", "gpu-1", id="a", expires_at=50.0),
        drain_endpoint("eu-de", "gpu-1", id="c"),
        drain_endpoint("eu-es", "gpu-1", id="d", expires_at=9.0),
        now=10.0,
    )
    assert [(each.name, each.because) for each in held.drained_endpoints("eu-de")] == [
        ("gpu-1", "drain endpoint a of eu-de/gpu-1: a test"),
        ("gpu-2", "drain endpoint b of eu-de/gpu-2: a test"),
    ]
    assert held.drained_endpoints("eu-es") == ()
    assert not held
    assert held.of("eu-de", MODEL) == NO_CONSTRAINTS


def test_a_slice_has_the_drained_endpoints_of_its_region() -> None:
    drains = interventions(drain_endpoint("eu-de", "gpu-1"))
    plans = waterfall_plans(POLICY, Snapshot(), {}, interventions=drains, elapsed_s=TICK_S)
    assert [each.name for each in plans["eu-de"].drained_endpoints] == ["gpu-1"]
    assert plans["eu-es"].drained_endpoints == ()


def test_a_lifted_drain_of_an_endpoint_ends_at_once() -> None:
    ended = lifted(drain_endpoint("eu-de", "gpu-1"), "operator", 5.0)
    assert interventions(ended, now=4.9).drained_endpoints("eu-de") != ()
    assert interventions(ended, now=5.0).drained_endpoints("eu-de") == ()
