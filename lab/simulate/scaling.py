"""Simulates autoscaling of three regions over days: Penstock's recommendations and a reactive HPA on the same demand.

Demand has a daily cycle with noise. On the last day one region has a surge, and another region fails at its peak. The
recommendations come from the leader's code with its forecast. The HPA runs with its defaults (a decision every 15 s,
fewer replicas after 300 s) on the offered load of the region, which a real HPA cannot measure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import ceil, cos, pi
from random import Random

import msgspec

from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.planning.forecasting.forecast import DAY_S, Forecaster
from penstock.planning.share_moves import Key
from penstock.policy.kinds.models import Model, Scaling
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.scaling.recommender import Recommender

STEP_S = 15.0
"""Interval (s) of decisions and of measurements."""

SLOTS = 8
SERVICE_S = 4.0
TARGET = 0.8
PEAK_PER_S, TROUGH_PER_S = 60.0, 12.0
"""Demand (requests/s) of each region at its local peak and trough."""

NAMES = ("america", "asia", "europe")
LONGITUDES = {"america": -80.0, "asia": 110.0, "europe": 10.0}
EVERYWHERE = residency_class(frozenset(NAMES))
SURGED, LOST = "america", "europe"

HPA_STABLE_S = 300.0
"""Default of an HPA's `scaleDown.stabilizationWindowSeconds`."""

Demand = dict[str, float]


class Scaled(msgspec.Struct, frozen=True):
    """The results of one autoscaler without the first day, on which the forecast learns the daily cycle."""

    name: str
    above_target_share: float
    """Share (0-1) of the time in which the use of a region's endpoints exceeded the target."""
    away_share: float
    """Share (0-1) of the requests that another region served because the home region had no free slot."""
    unserved_share: float
    """Share (0-1) of the requests for which no region had a free slot at arrival."""
    unserved_in_loss_share: float
    """Share (0-1) of the requests without a free slot in any region during the loss of the region."""
    gpu_hours: float


class Workload(msgspec.Struct, frozen=True):
    """The demand of every step, and the steps in which the region LOST is down."""

    demand: list[Demand]
    lost: range


def workload(days: int, seed: int) -> Workload:
    """Return the demand by step and region; the surge and the loss are on the last day."""
    rng = Random(seed)
    steps = int(days * DAY_S / STEP_S)
    noise = dict.fromkeys(NAMES, 0.0)
    start = (days - 1) * DAY_S
    # The surge begins an hour before local noon of its region, the loss at local noon, which is the peak.
    surge_at = start + (0.5 - LONGITUDES[SURGED] / 360.0) % 1.0 * DAY_S - 3600.0
    loss_at = start + (0.5 - LONGITUDES[LOST] / 360.0) % 1.0 * DAY_S
    demand = []
    for step in range(steps):
        now = step * STEP_S
        rates = {}
        for name in NAMES:
            local = now / DAY_S + LONGITUDES[name] / 360.0
            level = TROUGH_PER_S + (PEAK_PER_S - TROUGH_PER_S) * (1.0 - cos(2 * pi * local)) / 2.0
            noise[name] += 0.05 * (rng.gauss(0.0, 0.05) * 4.0 - noise[name])
            if name == SURGED:
                level *= 1.0 + 0.8 * _trapezium(now - surge_at, rise_s=300.0, hold_s=2400.0)
            rates[name] = level * (1.0 + noise[name])
        demand.append(rates)
    return Workload(demand, range(int(loss_at / STEP_S), int((loss_at + 1800.0) / STEP_S)))


def _trapezium(since_s: float, *, rise_s: float, hold_s: float) -> float:
    if since_s < rise_s:
        return max(0.0, since_s / rise_s)
    return max(0.0, min(1.0, (2 * rise_s + hold_s - since_s) / rise_s))


class Hpa:
    """A HorizontalPodAutoscaler with requests in flight per endpoint as its metric."""

    def __init__(self, target: float) -> None:
        """Args: `target` is the target use (0-1) of the slots."""
        self._target = target
        self._recent: dict[str, deque[tuple[float, int]]] = {name: deque() for name in NAMES}

    def desired(self, now: float, offered: Demand, ordered: dict[str, int], up: list[str]) -> dict[str, int]:
        """Return the replicas of every region that is up."""
        wanted = {}
        for name in up:
            raw = offered[name] * SERVICE_S / (SLOTS * self._target)
            count = ordered[name] if abs(raw / ordered[name] - 1.0) <= 0.1 else max(1, ceil(raw))
            recent = self._recent[name]
            recent.append((now, count))
            while now - recent[0][0] > HPA_STABLE_S:
                recent.popleft()
            wanted[name] = max(past for _, past in recent) if count < ordered[name] else count
        return wanted


def recommending_policy(
    longitudes: Mapping[str, float], cold_start_s: float, *, reserve: bool, target: float = TARGET
) -> Policy:
    """Return a policy of regions at longitudes (degrees) with one model.

    Args:
        longitudes: by region.
        cold_start_s: cold start (s) of the model.
        reserve: whether capacity is reserved for the loss of a region.
        target: target utilisation (0-1).
    """
    return Policy(
        {name: Region(name, "DE", 40.0, longitude) for name, longitude in longitudes.items()},
        {"m": Model("m", SERVICE_S, scaling=Scaling(cold_start_s, min_endpoints=1))},
        {},
        (),
        spillover=Spillover(target_utilisation=target),
        objective=Objective(survive_one_loss=reserve),
    )


class Recommended:
    """Applies Penstock's recommendations immediately."""

    def __init__(self, cold_start_s: float, *, reserve: bool) -> None:
        """Args: `reserve` enables the capacity reserve for the loss of a region."""
        self._policy = recommending_policy(LONGITUDES, cold_start_s, reserve=reserve)
        self._forecaster = Forecaster()
        self._recommender = Recommender()

    def desired(self, now: float, offered: Demand, ordered: dict[str, int], up: list[str]) -> dict[str, int]:
        """Return the endpoints of every region that is up."""
        self._forecaster.observe({Key(name, "m", EVERYWHERE.name): offered[name] for name in up}, now)
        agents = {}
        for name in up:
            count = ordered[name]
            pools = (PoolReport("m", count, count, count * SLOTS, 0, SERVICE_S),)
            rows = (DemandReport("m", EVERYWHERE.name, NAMES, offered[name]),)
            agents[name, "one"] = HeldReport(AgentReport(name, "one", 1, 1, now, pools, rows), now, now)
        found = self._recommender.recommend(
            self._policy, Snapshot(agents), lambda horizon_s: self._forecaster.for_capacity(now, horizon_s), now
        )
        return {row.region: row.desired_endpoints for row in found}


Desired = Callable[[float, Demand, dict[str, int], list[str]], dict[str, int]]


def simulate(name: str, desired: Desired, work: Workload, cold_start_s: float) -> Scaled:
    """Run one autoscaler over the whole demand, and return its results."""
    ordered = {region: max(1, ceil(work.demand[0][region] * SERVICE_S / SLOTS / TARGET)) for region in NAMES}
    ready = dict(ordered)
    starting: dict[str, deque[tuple[float, int]]] = {region: deque() for region in NAMES}
    steps = above = 0
    total = away = unserved = in_loss = unserved_in_loss = gpu_s = 0.0
    for step, rates in enumerate(work.demand):
        now, is_lost = step * STEP_S, step in work.lost
        up = [region for region in NAMES if not (is_lost and region == LOST)]
        offered = {region: rates[region] + (rates[LOST] / len(up) if is_lost else 0.0) for region in up}
        for region in NAMES:
            while starting[region] and starting[region][0][0] <= now:
                ready[region] += starting[region].popleft()[1]
        busy = {region: offered[region] * SERVICE_S for region in up}
        own = {region: min(busy[region], ready[region] * SLOTS) for region in up}
        over = sum(busy[region] - own[region] for region in up)
        free = sum(ready[region] * SLOTS - own[region] for region in up)
        missing = max(0.0, over - free)
        if now >= DAY_S:
            steps += len(up)
            above += sum(busy[region] > TARGET * ready[region] * SLOTS + 1e-9 for region in up)
            total += sum(busy.values())
            away += over - missing
            unserved += missing
            gpu_s += sum(ordered.values()) * STEP_S
            if is_lost:
                in_loss += sum(busy.values())
                unserved_in_loss += missing
        for region, count in desired(now, offered, ordered, up).items():
            if count > ordered[region]:
                starting[region].append((now + cold_start_s, count - ordered[region]))
            cancel_endpoints(starting[region], ready, region, ordered[region] - count)
            ordered[region] = count
    return Scaled(name, above / steps, away / total, unserved / total, unserved_in_loss / in_loss, gpu_s / 3600.0)


def cancel_endpoints(starting: deque[tuple[float, int]], ready: dict[str, int], region: str, fewer: int) -> None:
    """Remove endpoints of a region, starting endpoints before ready endpoints."""
    while fewer > 0 and starting:
        at, count = starting.pop()
        if count > fewer:
            starting.append((at, count - fewer))
        fewer -= min(count, fewer)
    if fewer > 0:
        ready[region] -= fewer


def compare(*, days: int, seed: int, cold_start_s: float) -> list[Scaled]:
    """Run every autoscaler on the same demand."""
    work = workload(days, seed)
    reserve = TARGET * (len(NAMES) - 1) / len(NAMES)
    contestants: dict[str, Desired] = {
        f"HPA, target {TARGET:.0%}": Hpa(TARGET).desired,
        f"HPA, target {reserve:.0%}": Hpa(reserve).desired,
        "Penstock, without reserve": Recommended(cold_start_s, reserve=False).desired,
        "Penstock": Recommended(cold_start_s, reserve=True).desired,
    }
    return [simulate(name, desired, work, cold_start_s) for name, desired in contestants.items()]
