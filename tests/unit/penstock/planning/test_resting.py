"""What planners remember of entries that stay as they are makes them faster, and no plan another."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from lab.bench.planets import Size, planet
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.overrides.interventions import Interventions
from penstock.overrides.overrides import Override, OverrideKind
from penstock.planning.hysteresis import Steadiness
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.planning.planner import Planner
from penstock.planning.unchanged_cache import Resting, is_as_wanted
from penstock.planning.waterfall_planner import GreedyPlanner
from penstock.policy.policy import SpilloverLimit
from tests.support.planet import with_bias

ENTRY = ClassPlan("m", "a+b", (Arc("a", 0.7, ArcReason.HOME), Arc("b", 0.3, ArcReason.SPILLOVER)), ())
KEY = ("a", "m", "a+b")
TICKS = 120


def life(by: Planner, seed: int) -> list[dict[str, RegionPlan]]:
    """The plans of a small planet's eventful life: losses, returns, drains, silence, surges, and quiet between them."""
    world, rng, events = planet(Size(8, 6, 4, 2), seed), Random(seed), Random(seed + 100)
    policy, rates = world.policy, dict(world.rates)
    health = dict.fromkeys(policy.regions, RegionHealth(RegionState.HEALTHY))
    overrides: list[Override] = []
    silent = ""
    plans: dict[str, RegionPlan] = {}
    every = []
    now = 0.0
    for tick in range(TICKS):
        now += events.choice((0.5, 0.5, 0.5, 15.0)) if tick % 30 > 20 else 0.5
        region = events.choice(sorted({name for name, _ in world.slots}))
        if tick % 30 < 12:
            match events.randrange(8):
                case 0:
                    health[region] = RegionHealth(RegionState.FAILED, now)
                case 1 | 2:
                    lost = [name for name, one in health.items() if one.state is RegionState.FAILED]
                    health |= dict.fromkeys(lost, RegionHealth(RegionState.RECOVERING, now))
                case 3:
                    drain = Override(str(tick), OverrideKind.DRAIN, "", "", now, region=region, expires_at=now + 4.0)
                    overrides.append(drain)
                case 4:
                    silent = events.choice(("", region))
                case 5:
                    factor = events.choice((0.2, 1.0, 3.0))
                    world.rates |= {key: rate * factor for key, rate in rates.items() if key[0] == region}
        if tick == 60:
            limit = SpilloverLimit("dear", max_cost_per_gpu_hour=1.1, max_share=0.3)
            policy = msgspec.structs.replace(with_bias(policy, {region: 200.0}), spillover_limits=(limit,))
        health |= {
            name: RegionHealth(RegionState.HEALTHY)
            for name, one in health.items()
            if one.state is RegionState.RECOVERING and one.weight(now, policy.failover) >= 1.0
        }
        reported = world.snapshot(rng, 0.0 if tick % 30 > 15 else 0.02).agents
        heard = {key: HeldReport(one.report, now - 100.0 * (key[0] == silent)) for key, one in reported.items()}
        meant = Interventions(overrides, policy.failover.failback_ramp_s, now)
        plans = by.decide(
            policy,
            Snapshot(heard, dict(health)),
            plans,
            now=now,
            epoch=1,
            generation=tick,
            elapsed_s=0.5,
            interventions=meant,
        ).plans
        every.append(plans)
    return every


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("planner", [lambda: FlowPlanner(60.0), GreedyPlanner])
def test_a_planner_that_remembers_plans_as_one_that_looks_at_everything(
    planner: Callable[[], Planner], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembering = life(planner(), seed)
    with monkeypatch.context() as forgetful:
        forgetful.setattr(Resting, "note", lambda *_: None)
        forgetful.setattr(Steadiness, "calm", lambda *_: None)
        looking = life(planner(), seed)
    assert remembering == looking


def test_what_rests_comes_out_as_the_same_object() -> None:
    world, by = planet(Size(8, 6, 4, 2), 1), GreedyPlanner()
    snapshot = world.snapshot(Random(1), 0.0)
    plans: dict[str, RegionPlan] = {}
    for _ in range(3):
        before = plans
        plans = by.decide(world.policy, snapshot, plans, now=0.0, epoch=1, generation=1, elapsed_s=0.5).plans
    assert all(
        one is other
        for origin, plan in plans.items()
        for one, other in zip(plan.classes, before[origin].classes, strict=True)
    )


def test_an_entry_rests_while_it_is_wanted_and_its_surroundings_stay() -> None:
    wanted = {"b": 0.3, "a": 0.7}
    resting = Resting()
    resting.begin("here")
    resting.note(KEY, ENTRY, "a")
    assert resting.home(KEY, ENTRY, wanted) == "a"
    assert resting.home(KEY, ENTRY, {"a": 1.0}) is None
    assert resting.home(KEY, msgspec.structs.replace(ENTRY), wanted) is None
    resting.begin("here")
    assert resting.home(KEY, ENTRY, wanted) == "a"
    resting.begin("there")
    assert resting.home(KEY, ENTRY, wanted) is None


def test_nothing_rests_where_everything_changes() -> None:
    resting = Resting()
    resting.begin(None)
    resting.note(KEY, ENTRY, "a")
    resting.begin(None)
    assert resting.home(KEY, ENTRY, {"b": 0.3, "a": 0.7}) is None


@pytest.mark.parametrize(
    ("target", "wanted"),
    [({"a": 0.7, "b": 0.3}, True), ({"a": 0.7, "c": 0.3}, False), ({"a": 1.0}, False), ({"a": 0.6, "b": 0.4}, False)],
)
def test_shares_that_are_wanted_are_those_of_the_arcs(target: dict[str, float], wanted: bool) -> None:
    assert is_as_wanted(ENTRY, target) is wanted
