"""Totals of a demand under one policy: served and rejected rates, round trips, waits and cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.planning.egress_cost import egress_cost
from penstock.planning.linear_program.waiting_cost import waiting
from penstock.policy.policy import MS_PER_S, SECONDS_PER_HOUR, Policy
from penstock.routing.reasons import Reason
from penstock.what_if.outcomes import Capacity, DemandGroup, DemandOutcome, Totals

MAX_UTILISATION = 0.99
"""Utilisation (0-1) that caps the queueing model, which diverges at 1."""


def totals(
    policy: Policy,
    demand: Sequence[DemandGroup],
    demand_outcomes: Sequence[DemandOutcome],
    pools: Mapping[tuple[str, str], Capacity],
    loads: Mapping[tuple[str, str], float],
) -> Totals:
    """Compute the totals of a demand.

    Args:
        policy: gives distances and prices.
        demand: the groups of the demand.
        demand_outcomes: the outcome of each group of the demand.
        pools: capacity by (region, model).
        loads: offered load in requests per second, by (region, model).
    """
    refused: dict[Reason, float] = defaultdict(float)
    trips: list[tuple[float, float]] = []
    wait_s = {pool: _wait_s(pools[pool], load) for pool, load in loads.items()}
    elsewhere = waited = gpu = egress = 0.0
    for group, demand_outcome in zip(demand, demand_outcomes, strict=True):
        for reason, share in demand_outcome.refused.items():
            refused[reason] += share * group.requests_per_s
        away = group.origin in policy.regions and demand_outcome.entry not in ("", group.origin)
        elsewhere += group.requests_per_s if away else 0.0
        for server, share in demand_outcome.servers.items():
            rate = share * group.requests_per_s
            to_entry_ms = policy.round_trip_ms(group.origin, demand_outcome.entry) if away else 0.0
            trips.append((to_entry_ms + policy.round_trip_ms(demand_outcome.entry, server), rate))
            waited += rate * wait_s[server, group.model]
            gpu += rate * pools[server, group.model].service_s * policy.regions[server].cost_per_gpu_hour
            egress += rate * _egress(policy, demand_outcome.entry, server, group.model) * SECONDS_PER_HOUR
    served = sum(rate for _, rate in trips)
    slots: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    for (region, model), pool in pools.items():
        slots[region] += pool.slots
        busy[region] += min(pool.slots, loads.get((region, model), 0.0) * pool.service_s)
    return Totals(
        requests_per_s=sum(group.requests_per_s for group in demand),
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
    """Expected wait in a pool in seconds, by Little's law from the expected queue length."""
    per_s = pool.slots / pool.service_s
    utilisation = min(MAX_UTILISATION, load_per_s / per_s)
    if utilisation <= 0.0:
        return 0.0
    waiting_now = waiting(np.array([utilisation]), np.array([float(pool.slots)]))
    return float(waiting_now[0]) / (utilisation * per_s)


def _egress(policy: Policy, entry: str, server: str, model: str) -> float:
    """Egress cost of one request between two regions."""
    if entry == server:
        return 0.0
    per_gb, back_per_gb = (policy.regions[name].egress_cost_per_gb for name in (entry, server))
    return egress_cost(policy.models[model], per_gb, back_per_gb)


def _quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """The weighted quantile at `share` (0-1); 0 for no values."""
    ordered = sorted(weighted)
    reached = np.cumsum([weight for _, weight in ordered])
    return ordered[int(np.searchsorted(reached, share * reached[-1] * (1.0 - 1e-9)))][0] if ordered else 0.0
