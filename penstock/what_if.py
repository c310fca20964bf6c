"""What would become of a demand under a policy: who serves it, how far away, at what cost, and what is refused.

Every request goes the live road: admitted by `admit_at_origin` where it lands, sent on to a permitted entry where it
may not be there, planned for by the logic that the policy names. The plan is the one that is wanted in the end,
without the bounded steps towards it. What is beyond a tenant's quota counts as refused, and so does what a region is
asked for beyond its slots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec
import numpy as np

from penstock.decision import admit_at_origin
from penstock.geography import Location
from penstock.moves import Key
from penstock.planner.logics import planner
from penstock.planner.queueing import waiting
from penstock.policy import Policy
from penstock.reasons import Reason, Refusal
from penstock.region_health import RegionHealth, RegionState
from penstock.report import AgentReport, DemandReport, PoolReport
from penstock.residency import Mask, RequestFacts, ResidencyClass
from penstock.snapshot import Held, Snapshot
from penstock.steer import Client, Steer
from penstock.versions import WHOLE_PERCENT, versions_of
from penstock.what_if_quota import let_in

BYTES_PER_GB = 1e9
SECONDS_PER_HOUR = 3600.0
MS_PER_S = 1000.0

FULLEST = 0.99
"""Utilisation that queueing is reckoned at where a pool is asked for as much as it has, or more."""

PLANNING_LIMIT_S = 10.0
"""The solver may take so long (s): nobody waits for a tick."""


class Asked(msgspec.Struct, frozen=True):
    """One kind of request, and how often it comes."""

    origin: str
    """Region whose agent the client's request lands on; empty where the client asks for an entry (steering)."""
    tenant: str
    country: str | None
    """ISO 3166-1 alpha-2 of the client; None where it is not known."""
    model: str
    requests_per_s: float
    subdivision: str | None = None
    """ISO 3166-2 without the country part."""


class Capacity(msgspec.Struct, frozen=True):
    """What one region can run of one model."""

    region: str
    model: str
    slots: int
    """Requests at once."""
    service_s: float
    """Mean time (s) one request holds a slot."""


class Fate(msgspec.Struct, frozen=True):
    """What becomes of one kind of request."""

    residency: str
    """Name of its residency class; empty where it is refused before it has one."""
    entry: str
    """Region whose agent reads it; empty where none does."""
    servers: dict[str, float]
    """Share (0-1) of it that each region serves."""
    refused: dict[Reason, float]
    """Share of it that is refused, by reason; all shares together are 1."""


class Totals(msgspec.Struct, frozen=True):
    """A whole demand under one policy."""

    requests_per_s: float
    served_per_s: float
    refused_per_s: dict[Reason, float]
    sent_elsewhere_per_s: float
    """Requests that came to a region which may not read them, and were told where to go."""
    round_trip_ms: float
    """Mean (ms) between regions for what is served: from where the client came to its entry, and on to the server."""
    p95_round_trip_ms: float
    wait_ms: float
    """Mean (ms) that a request may expect to wait for a slot."""
    gpu_cost_per_hour: float
    """Busy slots times the price of a GPU hour, in the currency of the bundle."""
    egress_cost_per_hour: float
    load: dict[str, float]
    """By region, the share (0-1) of its slots, of all models, that is busy."""


class Outcome(msgspec.Struct, frozen=True):
    """One policy's answer to a demand."""

    fates: tuple[Fate, ...]
    """In the order of the demand."""
    totals: Totals


def outcome(
    policy: Policy, demand: Sequence[Asked], fleet: Sequence[Capacity], lost: frozenset[str] = frozenset()
) -> Outcome:
    """What becomes of each kind of request, and of all of it.

    Args:
        fleet: what regions can run; what the policy does not know of it is passed over.
        lost: regions that have failed.
    """
    entered = _Entrances(policy, fleet, lost)
    whole, demand = demand, [part for one in demand for part in _as_served(policy, one, entered)]
    verdicts = [entered.enter(one) for one in demand]
    parts_in = _let_in(policy, demand, verdicts, fleet)
    held = [
        msgspec.structs.replace(one, requests_per_s=part * one.requests_per_s)
        for one, part in zip(demand, parts_in, strict=True)
    ]
    shares = _planned(policy, held, verdicts, fleet, lost)
    pools = {(one.region, one.model): one for one in fleet if one.region not in lost}
    loads = _loads(held, verdicts, shares)
    served = {
        pool: min(1.0, pools[pool].slots / pools[pool].service_s / load) if load > 0.0 else 1.0
        for pool, load in loads.items()
    }
    fates = tuple(
        _fate(one, verdict, shares, served, part) for one, verdict, part in zip(demand, verdicts, parts_in, strict=True)
    )
    parts = iter(fates)
    versions = [_shares_of(policy, one) for one in whole]
    return Outcome(
        tuple(_together(list(islice(parts, len(one))), one) for one in versions),
        _totals(policy, demand, fates, pools, loads),
    )


def _shares_of(policy: Policy, one: Asked) -> dict[str, float]:
    """The models that serve what is asked for by one name, with their shares (0-1): its versions, or itself."""
    versions = versions_of(policy, one.model)
    if versions is None:
        return {one.model: 1.0}
    return {version.model: version.percent / WHOLE_PERCENT for version in versions.versions}


def _as_served(policy: Policy, one: Asked, entrances: _Entrances) -> list[Asked]:
    """A kind of request by version; for each the lighter model that stands in where no permitted region has it."""
    found = []
    for model, share in _shares_of(policy, one).items():
        part = msgspec.structs.replace(one, model=model, requests_per_s=share * one.requests_per_s)
        while (known := policy.models.get(part.model)) is not None and known.fallback is not None:
            verdict = entrances.enter(part)
            if isinstance(verdict, Refusal) or entrances.has(verdict[1], part.model):
                break
            part = msgspec.structs.replace(part, model=known.fallback)
        found.append(part)
    return found


def _together(parts: list[Fate], shares: dict[str, float]) -> Fate:
    """The fate of a kind of request from those of its versions."""
    if len(parts) == 1:
        return parts[0]
    servers: dict[str, float] = defaultdict(float)
    refused: dict[Reason, float] = defaultdict(float)
    for part, weight in zip(parts, shares.values(), strict=True):
        for server, share in part.servers.items():
            servers[server] += weight * share
        for reason, share in part.refused.items():
            refused[reason] += weight * share
    return Fate(parts[0].residency, parts[0].entry, dict(servers), dict(refused))


_Entered = tuple[str, ResidencyClass]
"""The region that reads a request, and the class it has there."""


class _Entrances:
    """Where requests come in."""

    def __init__(self, policy: Policy, fleet: Sequence[Capacity], lost: frozenset[str]) -> None:
        self._policy = policy
        self._lost = lost
        self._steer = Steer(policy)
        self._ready = {(one.region, one.model) for one in fleet if one.region not in lost}
        self._states = {name: RegionState.FAILED if name in lost else RegionState.HEALTHY for name in policy.regions}

    def has(self, permitted: ResidencyClass, model: str) -> bool:
        """Whether some permitted region that stands has a model."""
        return any((region, model) in self._ready for region in permitted.regions)

    def enter(self, one: Asked) -> _Entered | Refusal:
        """By the region that it lands on; by another permitted one where that may not read it, or is lost."""
        policy = self._policy
        tenant = policy.tenants.get(one.tenant)
        if tenant is None:
            return Refusal(Reason.UNKNOWN_KEY, f"no tenant is named {one.tenant!r}")
        place = Location(one.country, one.subdivision)
        if one.origin not in policy.regions:
            client = Client(place, tenant.name, one.model)
            advice = self._steer.advise(client, self._states, self._ready)
            if advice.refusal is not None:
                return advice.refusal
            ways: tuple[str, ...] = tuple(entry.region for entry in advice.entries)
        else:
            ways = (one.origin, *policy.nearest_first(one.origin, frozenset(policy.regions) - {one.origin}))
        facts = RequestFacts(tenant.name, tenant.data_class, place)
        refused = Refusal(Reason.NONE_READY, "every region that may read it is lost")
        for way in ways:
            answer = admit_at_origin(policy, way, one.model, facts)
            if isinstance(answer, Mask):
                if way not in self._lost:
                    return way, answer.permitted
            elif answer.reason is not Reason.MISDIRECTED:
                return answer
        return refused


def _let_in(
    policy: Policy, demand: Sequence[Asked], verdicts: Sequence[_Entered | Refusal], fleet: Sequence[Capacity]
) -> list[float]:
    """How much (0-1) of each kind of request its tenant's quota admits where it comes in."""
    times_s: dict[str, list[float]] = defaultdict(list)
    for one in fleet:
        times_s[one.model].append(one.service_s)
    return let_in(
        policy,
        [
            None if isinstance(verdict, Refusal) else (verdict[0], one.tenant, one.model, one.requests_per_s)
            for one, verdict in zip(demand, verdicts, strict=True)
        ],
        {model: sum(some) / len(some) for model, some in times_s.items()},
    )


def _planned(
    policy: Policy,
    demand: Sequence[Asked],
    verdicts: Sequence[_Entered | Refusal],
    fleet: Sequence[Capacity],
    lost: frozenset[str],
) -> dict[Key, dict[str, float]]:
    """Shares by entry, model and class: the plan that the control plane would come to."""
    rates: dict[str, dict[tuple[str, ResidencyClass], float]] = defaultdict(lambda: defaultdict(float))
    for one, verdict in zip(demand, verdicts, strict=True):
        if not isinstance(verdict, Refusal):
            entry, permitted = verdict
            rates[entry][one.model, permitted] += one.requests_per_s
    agents = {
        (region, ""): Held(
            AgentReport(
                region,
                "",
                1,
                1,
                0.0,
                tuple(
                    PoolReport(one.model, 1, 1, one.slots, 0, one.service_s)
                    for one in fleet
                    if one.region == region and one.slots > 0
                ),
                tuple(
                    DemandReport(model, permitted.name, tuple(sorted(permitted.regions)), rate)
                    for (model, permitted), rate in rates[region].items()
                ),
            ),
            0.0,
        )
        for region in policy.regions
        if region not in lost
    }
    health = {
        name: RegionHealth(RegionState.FAILED if name in lost else RegionState.HEALTHY) for name in policy.regions
    }
    by = planner(policy.objective.plan_logic, PLANNING_LIMIT_S)
    plans = by.decide(policy, Snapshot(agents, health), {}, now=0.0, epoch=1, generation=1, elapsed_s=1.0).plans
    return {
        Key(origin, entry.model, entry.residency): {arc.server: arc.share for arc in entry.arcs}
        for origin, plan in plans.items()
        for entry in plan.classes
    }


def _loads(
    demand: Sequence[Asked], verdicts: Sequence[_Entered | Refusal], shares: Mapping[Key, Mapping[str, float]]
) -> dict[tuple[str, str], float]:
    """Requests per second that each pool is asked for, by (region, model)."""
    loads: dict[tuple[str, str], float] = defaultdict(float)
    for one, verdict in zip(demand, verdicts, strict=True):
        if not isinstance(verdict, Refusal):
            for server, share in shares.get(Key(verdict[0], one.model, verdict[1].name), {}).items():
                loads[server, one.model] += share * one.requests_per_s
    return dict(loads)


def _fate(
    one: Asked,
    verdict: _Entered | Refusal,
    shares: Mapping[Key, Mapping[str, float]],
    served: Mapping[tuple[str, str], float],
    part: float,
) -> Fate:
    """What becomes of one kind of request, of which `part` (0-1) is within its tenant's quota."""
    if isinstance(verdict, Refusal):
        return Fate("", "", {}, {verdict.reason: 1.0})
    entry, permitted = verdict
    planned = shares.get(Key(entry, one.model, permitted.name))
    if not planned:
        return Fate(permitted.name, entry, {}, {Reason.NONE_READY: 1.0})
    servers = {server: part * share * served[server, one.model] for server, share in planned.items()}
    refused = {Reason.QUOTA_EXCEEDED: 1.0 - part, Reason.SATURATED: part - sum(servers.values())}
    return Fate(permitted.name, entry, servers, {reason: share for reason, share in refused.items() if share > 1e-9})


def _totals(
    policy: Policy,
    demand: Sequence[Asked],
    fates: Sequence[Fate],
    pools: Mapping[tuple[str, str], Capacity],
    loads: Mapping[tuple[str, str], float],
) -> Totals:
    refused: dict[Reason, float] = defaultdict(float)
    trips: list[tuple[float, float]] = []
    wait_s = {pool: _wait_s(pools[pool], load) for pool, load in loads.items()}
    elsewhere = waited = gpu = egress = 0.0
    for one, fate in zip(demand, fates, strict=True):
        for reason, share in fate.refused.items():
            refused[reason] += share * one.requests_per_s
        away = one.origin in policy.regions and fate.entry not in ("", one.origin)
        elsewhere += one.requests_per_s if away else 0.0
        for server, share in fate.servers.items():
            rate = share * one.requests_per_s
            to_entry_ms = policy.round_trip_ms(one.origin, fate.entry) if away else 0.0
            trips.append((to_entry_ms + policy.round_trip_ms(fate.entry, server), rate))
            waited += rate * wait_s[server, one.model]
            gpu += rate * pools[server, one.model].service_s * policy.regions[server].cost_per_gpu_hour
            egress += rate * _egress_cost(policy, fate.entry, server, one.model) * SECONDS_PER_HOUR
    served = sum(rate for _, rate in trips)
    slots: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    for (region, model), pool in pools.items():
        slots[region] += pool.slots
        busy[region] += min(pool.slots, loads.get((region, model), 0.0) * pool.service_s)
    return Totals(
        requests_per_s=sum(one.requests_per_s for one in demand),
        served_per_s=served,
        refused_per_s=dict(refused),
        sent_elsewhere_per_s=elsewhere,
        round_trip_ms=sum(ms * rate for ms, rate in trips) / served if served else 0.0,
        p95_round_trip_ms=_quantile(trips, 0.95),
        wait_ms=waited / served * MS_PER_S if served else 0.0,
        gpu_cost_per_hour=gpu,
        egress_cost_per_hour=egress,
        load={region: busy[region] / count for region, count in sorted(slots.items()) if count},
    )


def _wait_s(pool: Capacity, load_per_s: float) -> float:
    """Time (s) that a request may expect to wait in a pool: Little's law on those that do."""
    per_s = pool.slots / pool.service_s
    utilisation = min(FULLEST, load_per_s / per_s)
    if utilisation <= 0.0:
        return 0.0
    waiting_now = waiting(np.array([utilisation]), np.array([float(pool.slots)]))
    return float(waiting_now[0]) / (utilisation * per_s)


def _egress_cost(policy: Policy, entry: str, server: str, model: str) -> float:
    """What one request costs for its bytes between two regions: its body there, the answer's back."""
    if entry == server:
        return 0.0
    sizes, regions = policy.models[model], policy.regions
    out = regions[entry].egress_cost_per_gb * sizes.request_bytes
    return (out + regions[server].egress_cost_per_gb * sizes.response_bytes) / BYTES_PER_GB


def _quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """The least value that at least so much (0-1) of the weight does not exceed; 0 without any."""
    ordered = sorted(weighted)
    reached = np.cumsum([weight for _, weight in ordered])
    return ordered[int(np.searchsorted(reached, share * reached[-1] * (1.0 - 1e-9)))][0] if ordered else 0.0
