"""Simulates autoscaling over a week of real demand: recommendations beside an HPA, KEDA and perfect foresight.

Four regions on four continents have the demand of a production service (`lab/traces/weekly`), each shifted by its
longitude, with the bursts of Azure's and Mooncake's traces, hour after hour or in random order. Where a region is full,
its overflow uses the free slots of the others; the rest waits. The forecast learns in the first week, and the second
one is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import ceil
from pathlib import Path
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray

from lab.simulate.forecast_errors import WEEK_S, real_traces
from lab.traces.read import read_trace
from lab.traces.trace import TraceError
from penstock.fleet.report import AgentReport, DemandReport, PoolReport, SpilloverReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.planning.forecasting.forecast import DAY_S, Forecaster
from penstock.planning.linear_program.waiting_cost import waiting
from penstock.planning.share_moves import Key
from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S, Model, Scaling
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.scaling.recommender import Recommender

STEP_S = 30.0
"""Interval (s) of decisions and of measurements; KEDA polls at this interval by default."""

SLOTS = 8
SERVICE_S = 4.0
TARGET = 0.8

HPA_STABLE_S = 300.0
"""Default of an HPA's `scaleDown.stabilizationWindowSeconds`."""

COLD_START_S = 180.0
MEAN_PER_S = 40.0
"""Mean demand (requests/s) of each region."""

LONGITUDES = {"america": -80.0, "asia": 110.0, "europe": 10.0, "oceania": 150.0}
TRACES = {
    "america": "azure-llm-2023-conv.csv",
    "asia": "mooncake-conversation.jsonl",
    "europe": "azure-llm-2023-conv.csv",
    "oceania": "mooncake-conversation.jsonl",
}
EVERYWHERE = residency_class(frozenset(LONGITUDES))

MAX_WAIT_S = 1.0
"""The objective: the expected wait for a slot is at most this time (s)."""

KEDA_WAITING = 5.0
"""Waiting requests for each replica, the threshold of `vllm:num_requests_waiting` in the examples of KEDA and vLLM."""

KEDA_MAX_REPLICAS = 100
"""Default of a ScaledObject's `maxReplicaCount`."""

TARGETS = (0.7, 0.8, 0.9)
"""The target utilisations (0-1) at which autoscalers are compared."""

STEPS_A_WEEK = int(WEEK_S / STEP_S)


class Week(StrEnum):
    """A trace of `lab/traces/weekly`: a language model of a production service over two weeks."""

    M_SMALL = "servegen-m-small"
    M_LARGE = "servegen-m-large"


class RegionLoad(msgspec.Struct, frozen=True):
    """What an autoscaler may read of one region."""

    per_s: float
    """Demand (requests/s)."""
    waiting: float
    """Requests that wait for a slot."""
    ordered: int
    """Endpoints that are ready or starting."""
    ready: int


Autoscaler = Callable[[int, Mapping[str, RegionLoad]], Mapping[str, int]]
"""Returns the wanted endpoints by region, for a step and the load of each region."""


class WeekResult(msgspec.Struct, frozen=True):
    """The results of one autoscaler over the second week."""

    name: str
    below_objective_share: float
    """Share (0-1) of the regions' time in which the expected wait for a slot was above MAX_WAIT_S."""
    gpu_hours: float
    changes: int
    """Number of changes of a region's endpoints."""


def demand_of(traces: Path, week: Week = Week.M_SMALL, block: int = 0) -> dict[str, list[float]]:
    """Return the demand (requests/s) of each step of two weeks, by region.

    Args:
        traces: folder of the traces that give the bursts; regions whose trace is missing have none.
        week: the trace that gives the level of demand.
        block: number of steps of the parts of the bursts that are drawn at random; 0 repeats them hour after hour.
    """
    rng = Random(1)
    (weeks,) = (trace for trace in real_traces() if trace.name == week)
    mean = sum(weeks.rates) / len(weeks.rates)
    at = (np.arange(2 * STEPS_A_WEEK) + 0.5) * STEP_S
    found = {}
    for name, longitude in LONGITUDES.items():
        shifted = (at + longitude / 360.0 * DAY_S) % (2 * WEEK_S)
        middles = (np.arange(len(weeks.rates)) + 0.5) * weeks.interval_s
        level = np.interp(shifted, middles, weeks.rates, period=2 * WEEK_S) / mean
        bursts = _drawn(_bursts(traces / TRACES[name]), len(at), block, rng)
        found[name] = (MEAN_PER_S * level * bursts).tolist()
    return found


def _drawn(bursts: Sequence[float], steps: int, block: int, rng: Random) -> NDArray[np.float64]:
    if not block or len(bursts) <= block:
        return np.resize(bursts, steps)
    begins = (rng.randrange(len(bursts) - block + 1) for _ in range(ceil(steps / block)))
    return np.concatenate([bursts[begin : begin + block] for begin in begins])[:steps]


def _bursts(trace: Path) -> list[float]:
    """The arrivals of each step of a trace, relative to their mean."""
    try:
        requests = read_trace(trace, Random(1), 3600.0)
    except TraceError:
        return [1.0]
    counts = np.bincount([int(request.at_s / STEP_S) for request in requests])[:-1]
    return (counts / counts.mean()).tolist()  # type: ignore[no-any-return]


def hpa(target: float) -> Autoscaler:
    """A HorizontalPodAutoscaler with requests in flight per endpoint as its metric, and its defaults."""

    def raw(load: RegionLoad) -> float:
        return (load.per_s * SERVICE_S + load.waiting) / (SLOTS * target)

    return _stabilised(raw)


def keda() -> Autoscaler:
    """A KEDA ScaledObject on the length of the queue, which an HPA with its defaults applies."""
    return _stabilised(lambda load: min(KEDA_MAX_REPLICAS, load.waiting / KEDA_WAITING))


def _stabilised(raw: Callable[[RegionLoad], float]) -> Autoscaler:
    """An HPA: no change within 10 % of the metric, and fewer replicas only after HPA_STABLE_S."""
    recent: dict[str, deque[int]] = {name: deque(maxlen=int(HPA_STABLE_S / STEP_S)) for name in LONGITUDES}

    def desired(step: int, loads: Mapping[str, RegionLoad]) -> Mapping[str, int]:
        wanted = {}
        for name, load in loads.items():
            value = raw(load)
            count = load.ordered if abs(value / load.ordered - 1.0) <= 0.1 else max(1, ceil(value))
            recent[name].append(count)
            wanted[name] = max(recent[name]) if count < load.ordered else count
        return wanted

    return desired


def foresight(demand: Mapping[str, Sequence[float]]) -> Autoscaler:
    """Perfect foresight over the cold start, and no endpoint above the target."""
    ahead = int(COLD_START_S / STEP_S) + 1

    def desired(step: int, loads: Mapping[str, RegionLoad]) -> Mapping[str, int]:
        return {
            name: max(1, ceil(max(demand[name][step : step + ahead]) * SERVICE_S / SLOTS / TARGET)) for name in loads
        }

    return desired


def penstock(target: float, *, reserve: bool) -> Autoscaler:
    """Penstock's recommendations at a target utilisation (0-1); `reserve` is for the loss of a region."""
    policy = Policy(
        {name: Region(name, "DE", 40.0, longitude) for name, longitude in LONGITUDES.items()},
        {"m": Model("m", SERVICE_S, scaling=Scaling(COLD_START_S, min_endpoints=1))},
        {},
        (),
        spillover=Spillover(target_utilisation=target),
        objective=Objective(survive_one_loss=reserve),
    )
    forecaster, recommender, names = Forecaster(), Recommender(), tuple(sorted(LONGITUDES))

    def desired(step: int, loads: Mapping[str, RegionLoad]) -> Mapping[str, int]:
        now = step * STEP_S
        forecaster.observe({Key(name, "m", EVERYWHERE.name): load.per_s for name, load in loads.items()}, now)
        agents = {}
        for name, load in loads.items():
            in_flight = int(min(load.per_s * SERVICE_S, load.ready * SLOTS) + load.waiting)
            pools = (PoolReport("m", load.ordered, load.ready, load.ready * SLOTS, in_flight, SERVICE_S),)
            rows = (DemandReport("m", EVERYWHERE.name, names, load.per_s),)
            queue = (SpilloverReport("m", int(load.waiting), 0, 0, 0),)
            report = AgentReport(name, "one", 1, 1, now, pools, rows, spillover=queue)
            agents[name, "one"] = HeldReport(report, now, now)
        found = recommender.recommend(
            policy, Snapshot(agents), lambda horizon_s: forecaster.for_capacity(now, horizon_s), now
        )
        return {row.region: row.desired_endpoints for row in found}

    return desired


def simulate_week(name: str, desired: Autoscaler, demand: Mapping[str, Sequence[float]]) -> WeekResult:
    """Run one autoscaler over both weeks, and return the results of the second one."""
    ordered = {region: max(1, ceil(rates[0] * SERVICE_S / SLOTS / TARGET)) for region, rates in demand.items()}
    starting: dict[str, deque[tuple[float, int]]] = {region: deque() for region in demand}
    ready, backlog = dict(ordered), dict.fromkeys(demand, 0.0)
    below = changes = 0
    gpu_s = 0.0
    for step in range(2 * STEPS_A_WEEK):
        for region, queue in starting.items():
            while queue and queue[0][0] <= step:
                ready[region] += queue.popleft()[1]
        arrived = {region: demand[region][step] * STEP_S + backlog[region] for region in demand}
        served = {region: ready[region] * SLOTS / SERVICE_S * STEP_S for region in demand}
        free = {region: max(0.0, served[region] - arrived[region]) for region in demand}
        over = {region: max(0.0, arrived[region] - served[region]) for region in demand}
        served_away = min(1.0, sum(free.values()) / total) if (total := sum(over.values())) else 0.0
        loads = {}
        for region in demand:
            # What remains after the overflow to other regions waits; requests that waited too long are refused.
            backlog[region] = min(over[region] * (1.0 - served_away), demand[region][step] * DEFAULT_MAX_WAIT_S)
            slots = float(max(1, ready[region] * SLOTS))
            utilisation = min(0.98, demand[region][step] * SERVICE_S / slots)
            queued = backlog[region] + waiting(utilisation, slots)
            wait_s = queued * SERVICE_S / slots
            if step >= STEPS_A_WEEK:
                below += wait_s > MAX_WAIT_S
                gpu_s += ordered[region] * STEP_S
            loads[region] = RegionLoad(demand[region][step], queued, ordered[region], ready[region])
        for region, count in desired(step, loads).items():
            changes += step >= STEPS_A_WEEK and count != ordered[region]
            if count > ordered[region]:
                starting[region].append((step + int(COLD_START_S / STEP_S), count - ordered[region]))
            _cancel(starting[region], ready, region, ordered[region] - count)
            ordered[region] = count
    return WeekResult(name, below / STEPS_A_WEEK / len(demand), gpu_s / 3600.0, changes)


def _cancel(starting: deque[tuple[float, int]], ready: dict[str, int], region: str, fewer: int) -> None:
    """Remove endpoints of a region, starting endpoints before ready endpoints."""
    while fewer > 0 and starting:
        at, count = starting.pop()
        if count > fewer:
            starting.append((at, count - fewer))
        fewer -= min(count, fewer)
    if fewer > 0:
        ready[region] -= fewer


def week_results(traces: Path, week: Week = Week.M_SMALL, block: int = 0) -> Iterator[WeekResult]:
    """Run every autoscaler on the same demand; arguments as for `demand_of`."""
    demand = demand_of(traces, week, block)
    contestants: dict[str, Autoscaler] = {
        **{f"HPA, target {target:.0%}": hpa(target) for target in (0.6, *TARGETS)},
        "KEDA, queue length": keda(),
        "perfect foresight": foresight(demand),
        **{f"Penstock, target {target:.0%}": penstock(target, reserve=False) for target in TARGETS},
        **{f"Penstock, target {target:.0%}, reserve": penstock(target, reserve=True) for target in TARGETS[1:]},
    }
    for name, desired in contestants.items():
        yield simulate_week(name, desired, demand)
