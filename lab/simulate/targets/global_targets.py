"""Targets of several regions: pooling, old reports, and reversals of plans after a step of demand."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, cos, pi
from random import Random

from lab.simulate.baselines.regional import AllOrNothing, EnvoyPriorities, LatencyOnly, RegionalBalancer
from lab.simulate.contenders import PENSTOCK
from lab.simulate.delayed_planner import DelayedPlanner, snapshot_of
from lab.simulate.targets.comparison import Target, at_least, at_most, mean, ratio
from lab.simulate.targets.planet_run import HEALTHY, MODEL, Arrival, Behaviour, CentralRun, PlanetRun
from lab.simulate.targets.scenarios import Measures, RegionScenario, Runs, Scale, values_of
from penstock.fleet.report import DemandReport, PoolReport
from penstock.fleet.snapshot import Snapshot
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass, residency_class

WATERFALL = "waterfall by region"
CENTRAL = "clairvoyant, one queue"

SERVICE_S = 2.0
SLOTS = 40
REPORT_AGE_S = 10.0

BASE_LOAD, SURGE_LOAD, OTHER_LOAD = 0.6, 1.3, 0.5
"""Demand divided by slots: of the first region before and after a step up, and of each other region."""

STEPS = 4
"""Number of steps of the first region's demand, alternately up and down."""

REVERSAL = 0.02
"""Minimum change of the plan's home share that counts as a move."""

PLACES = {"eu-de": (50.1, 8.7), "eu-es": (40.4, -3.7), "us-east": (39.0, -77.5), "asia": (1.35, 103.8)}
EU = ("eu-de", "eu-es")
COUNTRIES = {"eu-de": "DE", "eu-es": "ES", "us-east": "US", "asia": "SG"}

_BASELINES: dict[str, RegionalBalancer] = {
    "latency only": LatencyOnly(),
    "Envoy priorities": EnvoyPriorities(),
    "all or nothing": AllOrNothing(),
}


def _policy() -> Policy:
    regions = {name: Region(name, COUNTRIES[name], *place) for name, place in PLACES.items()}
    return Policy(
        regions,
        {MODEL: Model(MODEL, SERVICE_S)},
        {},
        (),
        spillover=Spillover(),
        objective=Objective(survive_one_loss=False),
    )


EVERYWHERE = residency_class(frozenset(PLACES))
WITHIN_EU = residency_class(frozenset(EU))


class StepScenario(RegionScenario, frozen=True, kw_only=True):
    """A scenario in which the demand of a region steps up and down, and reports are REPORT_AGE_S old."""

    def measure(self, contender: str, scale: Scale, seed: int) -> Measures:
        """As `Scenario.measure`."""
        arrivals = step_demand(scale.step_s, seed)
        planner = WaterfallPlanner() if contender == WATERFALL else FlowPlanner(1.0)
        baseline = LatencyOnly() if contender == CENTRAL else _BASELINES.get(contender)
        behaviour = Behaviour(REPORT_AGE_S, planner, baseline, credits=contender == PENSTOCK)
        make = CentralRun if contender == CENTRAL else PlanetRun
        run = make(_policy(), SITES, EVERYWHERE, behaviour, seed)
        result = run.run(arrivals)
        return {
            "wait_mean_s": result.wait_s / len(arrivals),
            "away": float(result.away),
            "least_away": least_away(arrivals, scale.step_s),
            "reversals": float(max(_reversals(result.home_shares, scale.step_s, step) for step in range(STEPS + 1))),
        }


SITES = dict.fromkeys(PLACES, SLOTS)

OLD_REPORTS = StepScenario(
    name="steps of demand, reports 10 s old",
    kinds=(),
    agents=len(PLACES),
    contenders=(PENSTOCK, WATERFALL, *_BASELINES, CENTRAL),
)


def step_demand(step_s: float, seed: int) -> list[Arrival]:
    """Return Poisson arrivals; the demand of the first region changes every `step_s` (s)."""
    rng = Random(seed)
    arrivals = []
    for name in PLACES:
        for step in range(STEPS + 1):
            at_s, end_s = step * step_s, (step + 1) * step_s
            rate = _load(name, step) * SLOTS / SERVICE_S
            while (at_s := at_s + rng.expovariate(rate)) < end_s:
                arrivals.append(Arrival(at_s, name, rng.expovariate(1.0 / SERVICE_S)))
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def _load(name: str, step: int) -> float:
    if name != "eu-de":
        return OTHER_LOAD
    return SURGE_LOAD if step % 2 else BASE_LOAD


def least_away(arrivals: list[Arrival], step_s: float) -> float:
    """Return the number of requests that exceed the first region's capacity at the policy's target utilisation."""
    target = Spillover().target_utilisation
    demand = [0.0] * (STEPS + 1)
    for arrival in arrivals:
        if arrival.origin == "eu-de":
            demand[min(STEPS, int(arrival.at_s / step_s))] += 1.0
    room = target * SLOTS * step_s / SERVICE_S
    return sum(max(0.0, count - room) for count in demand)


def _reversals(shares: list[tuple[float, float]], step_s: float, step: int) -> int:
    """Return the number of reversals of the plan's home share from a step until the reports contain the next step."""
    begin_s = step * step_s + REPORT_AGE_S
    path = [share for at, share in shares if begin_s <= at < begin_s + step_s]
    turns, direction = 0, 0
    last = path[0] if path else 1.0
    for share in path:
        if abs(share - last) >= REVERSAL:
            now = 1 if share > last else -1
            turns += direction not in (0, now)
            direction, last = now, share
    return turns


class PoolingScenario(RegionScenario, frozen=True, kw_only=True):
    """A scenario that measures the slots saved by pooling. Demand has a daily cycle, and residency restricts half of
    the demand of EU regions to the EU."""

    def measure(self, contender: str, scale: Scale, seed: int) -> Measures:
        """As `Scenario.measure`."""
        hours = range(0, 24, 2)
        noise = Random(seed)
        demand = [{name: _sun(name, hour) * noise.uniform(0.95, 1.05) for name in PLACES} for hour in hours]
        separate = {name: max(rates[name] for rates in demand) for name in PLACES}
        total = max(sum(rates.values()) for rates in demand)
        within_eu = max(sum(rates[name] for name in EU) for rates in demand) / 2
        pooled_total = max(total, within_eu)
        saved = 0.0
        for part in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0):
            scale_down = 1.0 - part * (1.0 - pooled_total / sum(separate.values()))
            if not _suffices({name: rate * scale_down for name, rate in separate.items()}, demand):
                break
            saved = part
        return {"saved_part": saved, "pooling_could_save": 1.0 - pooled_total / sum(separate.values())}


POOLING = PoolingScenario(name="pooling", kinds=(), agents=len(PLACES), contenders=(PENSTOCK,))

GLOBAL_SCENARIOS = (OLD_REPORTS, POOLING)


def _sun(name: str, hour: int) -> float:
    """Return the demand (requests/s) of a region at an hour of the day (UTC)."""
    local = hour + PLACES[name][1] / 15.0
    return 100.0 + 300.0 * (1.0 - cos(2 * pi * local / 24.0)) / 2.0


def _suffices(capacity: Mapping[str, float], demand: list[dict[str, float]]) -> bool:
    """Whether the product's plans keep the load of all regions within `capacity` (requests/s at the target) all day."""
    policy = _policy()
    target = policy.spillover.target_utilisation
    slots = {name: ceil(rate * SERVICE_S / target) for name, rate in capacity.items()}
    for number, rates in enumerate(demand):
        planning: DelayedPlanner[None] = DelayedPlanner(policy, FlowPlanner(10.0), 0.0, 7200.0)
        now = 7200.0 * (number + 1)
        planning.plan(_snapshot(slots, rates, now), now)
        plans = planning.plans
        load = dict.fromkeys(PLACES, 0.0)
        for origin, rate in rates.items():
            for residency, part in _classes(origin):
                entry = plans[origin].lookup(MODEL, residency.name)
                for arc in entry.arcs if entry is not None else ():
                    load[arc.server] += rate * part * arc.share
        if any(load[name] * SERVICE_S > target * slots[name] * 1.001 + 1.0 for name in PLACES):
            return False
    return True


def _classes(origin: str) -> list[tuple[ResidencyClass, float]]:
    return [(WITHIN_EU, 0.5), (EVERYWHERE, 0.5)] if origin in EU else [(EVERYWHERE, 1.0)]


def _snapshot(slots: Mapping[str, int], rates: Mapping[str, float], now: float) -> Snapshot:
    reports = {}
    for name, count in slots.items():
        rows = tuple(
            DemandReport(MODEL, residency.name, tuple(sorted(residency.regions)), rates[name] * part)
            for residency, part in _classes(name)
        )
        reports[name] = PoolReport(MODEL, 1, 1, count, 0, SERVICE_S), rows
    return snapshot_of(reports, dict.fromkeys(slots, HEALTHY), now)


def global_targets(runs: Mapping[str, Runs]) -> list[Target]:
    """Return the targets of several regions from the runs of each scenario."""
    steps, pooling = runs[OLD_REPORTS.name], runs[POOLING.name]
    least = values_of(steps, CENTRAL, "wait_mean_s")
    excess = [wait - bound for wait, bound in zip(values_of(steps, PENSTOCK, "wait_mean_s"), least, strict=True)]
    others = [wait - bound for wait, bound in zip(values_of(steps, WATERFALL, "wait_mean_s"), least, strict=True)]
    could = mean(values_of(pooling, PENSTOCK, "pooling_could_save"))[0]
    return [
        at_least(
            0.8,
            "5 pooling: part of the GPU saving that pooling could give",
            mean(values_of(pooling, PENSTOCK, "saved_part")),
            f"pooling could save {could:.0%} of the slots",
        ),
        at_most(0.05, "5 reports 10 s old: excess wait / waterfall", ratio(excess, others)),
        at_most(
            1.15,
            "5 reports 10 s old: requests spilled / minimum",
            ratio(values_of(steps, PENSTOCK, "away"), values_of(steps, PENSTOCK, "least_away")),
            "the minimum is the demand above the policy's target utilisation",
        ),
        at_most(1.0, "5 reports 10 s old: reversals of the plan a step", mean(values_of(steps, PENSTOCK, "reversals"))),
    ]
