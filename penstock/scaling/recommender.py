"""Recommends the number of endpoints for each region and model, from the snapshot and a forecast.

Penstock starts no endpoint: an autoscaler (KEDA, an HPA, or a person) applies the recommendations. A higher number is
recommended at once, a lower number after STABLE_S without a need for more, and with a margin of LOWER_MARGIN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Final

import msgspec
from msgspec import UNSET

from penstock.fleet.capacity import service_times
from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport
from penstock.fleet.report import PoolReport
from penstock.fleet.reported_endpoints import endpoints
from penstock.fleet.snapshot import Demand, FadedPool, Snapshot, demand, pools, reporting_regions
from penstock.fleet.traffic_view import spillover
from penstock.planning.plan import VersionShare
from penstock.planning.share_moves import Key
from penstock.policy.gpu_price import gpu_price
from penstock.policy.kinds.models import Scaling
from penstock.policy.model_versions import WHOLE_PERCENT
from penstock.policy.policy import Policy
from penstock.scaling.demand_levels import Peaks, Smoothed
from penstock.scaling.drain_choice import endpoints_to_drain
from penstock.scaling.replicas import ROUNDING, Cause, EndpointCapacity, Expected, Need, needs
from penstock.scaling.standby import StandbyWatch
from penstock.scaling.utilisation_limits import UtilisationLimits, missed_objectives

REACTION_S: Final = 60.0
"""Time (s) from a recommendation until the autoscaler orders an endpoint."""

STABLE_S: Final = 600.0
"""Time (s) for which a lower number must have been sufficient before it is recommended; also the time after the start
of a leader, and after a gap in the reports about a pool, during which no number below the existing endpoints is
recommended."""

LOWER_MARGIN: Final = 0.05
"""Additional demand (0-1) that a lower number must serve, so that demand about a whole number of endpoints changes
nothing back and forth."""

QUEUE_S: Final = 30.0
"""Time (s) for which requests must wait without a break before they count."""

MAX_STEP_S: Final = 300.0
"""Maximum time (s) between two moments at which demand is forecast."""

DEAD_S: Final = 300.0
"""Time (s) after which an endpoint that fails its health probes does not count as existing."""

Forecast = Callable[[float], Mapping[Key, float]]
"""Function from a time ahead (s) to the expected demand (requests per second) by key."""


class Recommendation(msgspec.Struct, frozen=True):
    """The number of endpoints that one region should have for one model."""

    region: str
    model: str
    endpoints: int
    """Number of existing endpoints, ready or not, without draining and dead endpoints."""
    ready: int
    desired_endpoints: int
    cause: Cause
    """What determines the desired number."""
    lost: str | None
    """The region whose loss determines the number, or asks for more than the maximum; null for other causes."""
    requests_per_s: float
    """Measured demand of the region's own clients for the model."""
    forecast_per_s: float
    """Highest expected demand, up to `horizon_s` ahead, whose nearest permitted region this is."""
    horizon_s: float
    """Time (s) ahead for which demand is forecast: the cold start of the model, plus a minute."""
    drain: tuple[str, ...] = ()
    """Names of the endpoints to drain, in this order; empty unless fewer endpoints are desired."""
    dead: tuple[str, ...] = ()
    """Names of the endpoints that have failed their health probes for 5 minutes, and have to be replaced."""
    cost_per_hour: float = 0.0
    """Price of the GPUs of the desired endpoints, at the price of now."""
    is_spot: bool = False
    """Whether they are spot capacity, by the policy."""


class Recommender:
    """Recommends capacity while its control plane leads; a new leader creates a new recommender."""

    def __init__(self) -> None:
        self.standby = StandbyWatch()
        """What standby regions take over from lost regions."""
        self._reported_since: dict[tuple[str, str], float] = {}
        """Time since when each (region, model) is reported without a gap."""
        self._down_since: dict[tuple[str, str], float] = {}
        """Time since when each endpoint, by region and name, is reported as down."""
        self._recent: dict[tuple[str, str], deque[tuple[float, Need]]] = {}
        """Needs of the last STABLE_S by (region, model), in order of time; only needs above all later needs."""
        self._desired: dict[tuple[str, str], int] = {}
        """The last recommended number by (region, model)."""
        self._limits = UtilisationLimits()
        self._smoothed = Smoothed[Key]()
        self._peaks = Peaks[tuple[str, str]]()
        self._backlogs: dict[tuple[str, str], _Backlog] = {}

    def recommend(
        self,
        policy: Policy,
        snapshot: Snapshot,
        forecast: Forecast,
        now: float,
        shares: Sequence[VersionShare] = (),
    ) -> tuple[Recommendation, ...]:
        """The recommendations for every (region, model) with endpoints, or that may get one, by region and model.

        Args:
            policy: the policy in force.
            snapshot: the newest reports.
            forecast: forecast of demand, as of `now`.
            now: Unix time, in seconds; at least the time of the previous call.
            shares: the shares of the rollouts of versions.
        """
        measured = demand(snapshot, now, with_batch=True)
        seen = {key: pool for key, pool in pools(snapshot, now).items() if pool.report.endpoints > 0}
        for key in _from_zero(policy, snapshot, now) - seen.keys():
            seen[key] = FadedPool(PoolReport(key[1], 0, 0, 0, 0, 0.0), 0.0)
        models = {name: model.scaling.cold_start_s for name, model in policy.models.items()}
        target = policy.spillover.target_utilisation
        limits = self._limits.update(missed_objectives(snapshot, now), seen, models, target, now)
        sizes = _sizes(policy, seen, limits)
        asked = _at_next_steps(policy, measured, shares)
        rates = {Key(row.origin, row.model, row.residency): row.requests_per_s for row in asked}
        expected = _expected(policy, asked, self._smoothed.update(rates, now), forecast)
        displaced = self.standby.step(policy, snapshot, seen, expected, now)
        wanted = needs(policy, sizes, displaced.expected, displaced.lost)
        self.standby.observe(wanted, {key: pool.report.ready for key, pool in seen.items()}, now)
        waiting = self._waiting(snapshot, now)
        peaks = self._peaks.update({key: need.measured_per_s for key, need in wanted.items()}, now)
        wanted = {
            key: _with_peak(need, peaks[key], sizes[key], policy.models[key[1]].scaling) for key, need in wanted.items()
        }
        wanted = {
            key: _with_queue(need, waiting.get(key, 0), seen[key], sizes[key], policy.models[key[1]].scaling)
            for key, need in wanted.items()
        }
        self._reported_since = {key: self._reported_since.get(key, now) for key in wanted}
        self._recent = {key: recent for key, recent in self._recent.items() if now - recent[-1][0] <= STABLE_S}
        self._desired = {key: desired for key, desired in self._desired.items() if key in self._recent}
        rows = _by_region(snapshot, now)
        measured_per_s: dict[tuple[str, str], float] = {}
        for row in measured:
            key = row.origin, row.model
            measured_per_s[key] = measured_per_s.get(key, 0.0) + row.requests_per_s
        dead = self._dead(rows, now)
        gone = {key: tuple(row.name for row in dead.get(key[0], ()) if key[1] in row.models) for key in wanted}
        exist = {key: max(0, seen[key].report.endpoints - len(gone[key])) for key in wanted}
        stable = {key: self._stable(key, need, exist[key], now) for key, need in wanted.items()}
        drained = {
            region: endpoints_to_drain(
                reports,
                {model: exist[at, model] - need.endpoints for (at, model), need in stable.items() if at == region},
            )
            for region, reports in rows.items()
        }
        return tuple(
            Recommendation(
                region=region,
                model=model,
                endpoints=exist[region, model],
                ready=seen[region, model].report.ready,
                desired_endpoints=need.endpoints,
                cause=need.cause,
                lost=need.lost,
                requests_per_s=measured_per_s.get((region, model), 0.0),
                forecast_per_s=wanted[region, model].requests_per_s,
                horizon_s=_horizon_s(policy, model),
                drain=tuple(endpoint.name for endpoint in drained.get(region, ()) if model in endpoint.models),
                dead=gone[region, model],
                cost_per_hour=need.endpoints
                * policy.models[model].scaling.gpus_per_endpoint
                * gpu_price(policy, region, model, now),
                is_spot=policy.regions[region].spot_of(model) is not None,
            )
            for (region, model), need in sorted(stable.items())
            if need.endpoints or exist[region, model] or self._is_stable((region, model), now)
        )

    def _dead(self, rows: Mapping[str, list[EndpointReport]], now: float) -> dict[str, list[EndpointReport]]:
        """The endpoints of each region that have been reported as down for DEAD_S."""
        down = {(at, row.name) for at, each in rows.items() for row in each if row.condition is EndpointCondition.DOWN}
        self._down_since = {key: self._down_since.get(key, now) for key in down}
        return {
            at: [row for row in each if now - self._down_since.get((at, row.name), now) >= DEAD_S]
            for at, each in rows.items()
        }

    def _is_stable(self, key: tuple[str, str], now: float) -> bool:
        """Whether a pool has been reported without a gap for long enough to recommend fewer endpoints than exist."""
        return now - self._reported_since[key] >= STABLE_S

    def _waiting(self, snapshot: Snapshot, now: float) -> dict[tuple[str, str], int]:
        """The requests that waited in every report of a period of QUEUE_S, by (region, model)."""
        regions = {region for region, _ in snapshot.agents}
        seen = {(at, row.model): row.waiting for at in regions for row in spillover(snapshot, at, now)}
        self._backlogs = {
            key: self._backlogs.get(key, _Backlog(now, count)).after(now, count)
            for key, count in seen.items()
            if count > 0
        }
        return {key: backlog.waiting for key, backlog in self._backlogs.items()}

    def _stable(self, key: tuple[str, str], need: Need, exist: int, now: float) -> Need:
        """The highest need of the last STABLE_S; at least `exist` in the first STABLE_S of its reports."""
        recent = self._recent.setdefault(key, deque())
        while recent and recent[-1][1].endpoints <= need.endpoints:
            recent.pop()
        recent.append((now, need))
        while now - recent[0][0] > STABLE_S:
            recent.popleft()
        highest = recent[0][1]
        before = self._desired.get(key, 0)
        if highest.endpoints < before:
            held = min(before, ceil(highest.exact * (1.0 + LOWER_MARGIN) - ROUNDING))
            highest = msgspec.structs.replace(highest, endpoints=max(highest.endpoints, held))
        self._desired[key] = highest.endpoints
        if not self._is_stable(key, now) and highest.endpoints < exist:
            return msgspec.structs.replace(highest, endpoints=exist)
        return highest


def _from_zero(policy: Policy, snapshot: Snapshot, now: float) -> set[tuple[str, str]]:
    """Every (region, model) that has a recommendation without an endpoint. The region must report: an autoscaler has to
    keep the endpoints of a region whose agents cannot report."""
    named = [(model.name, model.scaling.regions) for model in policy.models.values()]
    wanted = {(region, model) for model, regions in named if regions is not UNSET for region in regions}
    reporting = reporting_regions(snapshot, now) if wanted else frozenset()
    return {key for key in wanted if key[0] in reporting}


class _Backlog(msgspec.Struct, frozen=True):
    """Waiting requests of one model in one region."""

    since: float
    """Time since when the current period of QUEUE_S lasts."""
    least: int
    """Smallest number in the current period."""
    waiting: int = 0
    """Smallest number of the last complete period; 0 before one is complete."""

    def after(self, now: float, count: int) -> _Backlog:
        """The backlog after a report of `count` waiting requests."""
        least = min(self.least, count)
        return _Backlog(now, count, least) if now - self.since >= QUEUE_S else _Backlog(self.since, least, self.waiting)


def _with_peak(need: Need, peak_per_s: float, size: EndpointCapacity, scaling: Scaling) -> Need:
    """The need, raised to endpoints whose slots a peak fills completely; without demand, no peak keeps endpoints."""
    exact = peak_per_s * size.service_s / size.slots_per_endpoint
    wanted = min(ceil(exact - ROUNDING), scaling.max_endpoints)
    if wanted <= need.endpoints or need.endpoints == 0:
        return need
    return msgspec.structs.replace(need, endpoints=wanted, cause=Cause.PEAK, lost=None, exact=exact)


def _with_queue(need: Need, waiting: int, seen: FadedPool, size: EndpointCapacity, scaling: Scaling) -> Need:
    """The need, raised to endpoints that run the waiting requests too: at most as many again as are ready."""
    ready = seen.report.ready
    more = min(ceil(waiting / size.slots_per_endpoint), ready)
    wanted = min(ready + more, scaling.max_endpoints)
    if more == 0 or wanted <= need.endpoints:
        return need
    return Need(wanted, need.requests_per_s, Cause.QUEUE, exact=float(wanted))


def _horizon_s(policy: Policy, model: str) -> float:
    return policy.models[model].scaling.cold_start_s + REACTION_S


def _by_region(snapshot: Snapshot, now: float) -> dict[str, list[EndpointReport]]:
    found: dict[str, list[EndpointReport]] = {}
    for row in endpoints(snapshot, now):
        if row.report.is_burst:
            continue
        found.setdefault(row.region, []).append(row.report)
    return found


def _sizes(
    policy: Policy, seen: Mapping[tuple[str, str], FadedPool], limits: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], EndpointCapacity]:
    """The capacity of one endpoint by (region, model): as measured, else from the policy."""
    sizes = {}
    for key, service_s in service_times(policy, seen).items():
        report, scaling = seen[key].report, policy.models[key[1]].scaling
        slots = report.slots / report.ready if report.ready and report.slots else scaling.slots_per_endpoint
        sizes[key] = EndpointCapacity(slots, service_s, limits.get(key))
    return sizes


def _at_next_steps(policy: Policy, measured: list[Demand], shares: Sequence[VersionShare]) -> list[Demand]:
    """The measured demand, raised to what new versions receive at the next step of their rollouts: it waits for their
    endpoints."""
    rows = {(row.origin, row.model, row.residency): row for row in measured}
    for share in shares:
        versions = policy.versions.get(share.name)
        names = {each.model for each in versions.versions} if versions is not None and share.next_percent else set()
        total: dict[tuple[str, str], Demand] = {}
        for row in measured:
            if row.model in names:
                known = total.get((row.origin, row.residency))
                per_s = row.requests_per_s + (known.requests_per_s if known is not None else 0.0)
                total[row.origin, row.residency] = Demand(row.origin, share.to, row.residency, row.regions, per_s)
        for (origin, residency), both in total.items():
            per_s, now = (
                both.requests_per_s * share.next_percent / WHOLE_PERCENT,
                rows.get((origin, share.to, residency)),
            )
            if now is None or per_s > now.requests_per_s:
                rows[origin, share.to, residency] = msgspec.structs.replace(both, requests_per_s=per_s)
    return list(rows.values())


def _expected(
    policy: Policy, measured: list[Demand], smoothed: Mapping[Key, float], forecast: Forecast
) -> dict[Key, Expected]:
    """The highest demand from now until an endpoint that is ordered now serves."""
    forecasts: dict[float, list[Mapping[Key, float]]] = {}
    expected = {}
    for row in measured:
        if row.model not in policy.models:
            continue
        horizon_s = _horizon_s(policy, row.model)
        if horizon_s not in forecasts:
            steps = ceil(horizon_s / MAX_STEP_S)
            forecasts[horizon_s] = [forecast(horizon_s * step / steps) for step in range(1, steps + 1)]
        key = Key(row.origin, row.model, row.residency)
        per_s = max(smoothed[key], *(rates.get(key, 0.0) for rates in forecasts[horizon_s]))
        expected[key] = Expected(per_s, row.regions, smoothed[key])
    return expected
