"""Totals of a demand under one policy: served and rejected rates, round trips, waits and cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.planning.egress_cost import egress_cost
from penstock.planning.linear_program.waiting_cost import waiting
from penstock.policy.gpu_price import gpu_price
from penstock.policy.policy import MS_PER_S, SECONDS_PER_HOUR, Policy
from penstock.routing.reasons import Reason
from penstock.what_if.demand_outcomes import Capacity, DemandGroup, DemandOutcome, Totals
from penstock.what_if.shared_slots import SlotSet, slot_sets

MAX_UTILISATION = 0.99
"""Utilisation (0-1) that caps the queueing model, which diverges at 1."""


class Loads(NamedTuple):
    """What the pools receive, by (region, model)."""

    pools: Mapping[tuple[str, str], Capacity]
    per_s: Mapping[tuple[str, str], float]
    """Offered load in requests per second."""
    burst: Mapping[tuple[str, str], float]
    """Share (0-1) of the load that burst endpoints serve."""
    served: Mapping[tuple[str, str], float]
    """Share (0-1) of the load that is served, by burst endpoints included."""

    def of_slots(self) -> dict[tuple[str, str], float]:
        """The load without that of burst endpoints."""
        return {at: load * (1.0 - self.burst.get(at, 0.0)) for at, load in self.per_s.items()}


def totals(
    policy: Policy,
    demand: Sequence[DemandGroup],
    demand_outcomes: Sequence[DemandOutcome],
    received: Loads,
    now: float,
) -> Totals:
    """Compute the totals of a demand.

    Args:
        policy: the policy with the distances and prices.
        demand: the groups of the demand.
        demand_outcomes: the outcome of each group of the demand.
        received: what the pools receive, of the demand that is admitted.
        now: Unix time (s), of the prices.
    """
    refused: dict[Reason, float] = defaultdict(float)
    trips: list[tuple[float, float]] = []
    pools, loads = received.pools, received.of_slots()
    sets = slot_sets(pools, loads)
    wait_s = {pool: _wait_s(sets[pool]) for pool in loads}
    elsewhere = waited = gpu = egress = burst_per_s = burst_cost = 0.0
    for group, demand_outcome in zip(demand, demand_outcomes, strict=True):
        for reason, share in demand_outcome.refused.items():
            refused[reason] += share * group.requests_per_s
        away = group.origin in policy.regions and demand_outcome.entry not in ("", group.origin)
        elsewhere += group.requests_per_s if away else 0.0
        for server, share in demand_outcome.servers.items():
            rate = share * group.requests_per_s
            to_entry_ms = policy.round_trip_ms(group.origin, demand_outcome.entry) if away else 0.0
            trips.append((to_entry_ms + policy.round_trip_ms(demand_outcome.entry, server), rate))
            egress += rate * _egress(policy, demand_outcome.entry, server, group.model) * SECONDS_PER_HOUR
            at, terms = (server, group.model), policy.regions[server].burst_of(group.model)
            if at in received.burst and terms is not None:
                bursts = rate * received.burst[at] / received.served[at]
                burst_per_s += bursts
                burst_s = bursts * pools[server, group.model].service_s
                burst_cost += burst_s * terms.cost_per_second * SECONDS_PER_HOUR
                rate -= bursts
            waited += rate * wait_s[server, group.model]
            gpu += rate * _gpu_s(policy, pools[server, group.model]) * gpu_price(policy, server, group.model, now)
    served = sum(rate for _, rate in trips)
    slots: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    for of_set in set(sets.values()):
        slots[of_set.region] += of_set.slots
        busy[of_set.region] += min(of_set.slots, of_set.busy)
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
        burst_per_s=burst_per_s,
        burst_cost_per_hour=burst_cost,
        load={region: busy[region] / count for region, count in sorted(slots.items()) if count},
    )


def _wait_s(of_set: SlotSet) -> float:
    """Expected wait for a slot in seconds, by Little's law from the expected queue length."""
    if of_set.busy <= 0.0:
        return 0.0
    utilisation = min(MAX_UTILISATION, of_set.busy / of_set.slots)
    waiting_now = waiting(np.array([utilisation]), np.array([of_set.slots]))
    service_s = of_set.busy / of_set.load_per_s
    completed_per_s = utilisation * of_set.slots / service_s
    # A rate near the smallest float is rounded to 0, so the division would fail.
    return float(waiting_now[0]) / completed_per_s if completed_per_s > 0.0 else 0.0


def _gpu_s(policy: Policy, pool: Capacity) -> float:
    """GPU time of one request in seconds: the time for which it holds its slot, times the GPUs of a slot."""
    scaling = policy.models[pool.model].scaling
    return pool.service_s * scaling.gpus_per_endpoint / (pool.slots_per_endpoint or scaling.slots_per_endpoint)


def _egress(policy: Policy, entry: str, server: str, model: str) -> float:
    if entry == server:
        return 0.0
    per_gb, back_per_gb = (policy.regions[name].egress_cost_per_gb for name in (entry, server))
    return egress_cost(policy.models[model], per_gb, back_per_gb)


def _quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """The weighted quantile at `share` (0-1); 0 for no values."""
    ordered = sorted(weighted)
    reached = np.cumsum([weight for _, weight in ordered])
    return ordered[int(np.searchsorted(reached, share * reached[-1] * (1.0 - 1e-9)))][0] if ordered else 0.0
