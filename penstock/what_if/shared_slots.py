"""Capacity of pools that share slots, counted once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.fleet.capacity_groups import coupled_models
from penstock.fleet.slot_placement import SlotPlacement
from penstock.policy.policy import Policy
from penstock.what_if.demand_outcomes import Capacity

ROUNDS = 20
"""Number of equal parts of every load that are placed in turn, so that no model takes all shared slots first."""


class SlotSet(NamedTuple):
    """The pools of one region whose capacity depends on one another; one pool, unless models share slots."""

    region: str
    models: tuple[str, ...]
    slots: float
    """Concurrent requests of all models together."""
    busy: float
    """Slots that the offered load would fill."""
    load_per_s: float
    """Offered load of all models together, in requests per second."""


def slot_sets(
    pools: Mapping[tuple[str, str], Capacity], loads: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], SlotSet]:
    """The slot set of each pool, by (region, model).

    Args:
        pools: capacity by (region, model).
        loads: offered load in requests per second, by (region, model).
    """
    by_region: dict[str, dict[str, Capacity]] = {}
    for (region, model), pool in pools.items():
        by_region.setdefault(region, {})[model] = pool
    found = {}
    for region, by_model in by_region.items():
        coupled = coupled_models(group.models for pool in by_model.values() for group in pool.shared)
        sets = {tuple(name for name in coupled.get(model, (model,)) if name in by_model) for model in by_model}
        for models in sets:
            own = sum(by_model[name].own_slots for name in models)
            shared = {group.models: group.slots for name in models for group in by_model[name].shared}
            load = {name: loads.get((region, name), 0.0) for name in models}
            busy = sum(load[name] * by_model[name].service_s for name in models)
            of_set = SlotSet(region, models, own + sum(shared.values()), busy, sum(load.values()))
            for name in models:
                found[region, name] = of_set
    return found


def burst_shares(
    policy: Policy,
    pools: Mapping[tuple[str, str], Capacity],
    loads: Mapping[tuple[str, str], float],
    served: Mapping[tuple[str, str], float],
) -> dict[tuple[str, str], float]:
    """The share (0-1) of each pool's load that burst endpoints run, by (region, model) with such a load.

    Args:
        served: the share that the pool's own slots run.
    """
    found = {}
    for (region, model), load in loads.items():
        pool = pools[region, model]
        left = load * (1.0 - served[region, model])
        if pool.burst_slots and left > 0.0 and policy.regions[region].burst_of(model) is not None:
            found[region, model] = min(left, pool.burst_slots / pool.service_s) / load
    return found


def served_shares(
    pools: Mapping[tuple[str, str], Capacity], loads: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], float]:
    """The share (0-1) of each pool's load that its slots can run, by (region, model) with a load."""
    free: list[float] = []
    draws: dict[tuple[str, str], list[int]] = {}
    known: dict[tuple[str, tuple[str, ...]], int] = {}
    for (region, model), pool in pools.items():
        draws[region, model] = [len(free)]
        free.append(pool.own_slots)
        for group in sorted(pool.shared, key=lambda group: len(group.models)):
            if (region, group.models) not in known:
                known[region, group.models] = len(free)
                free.append(group.slots)
            draws[region, model].append(known[region, group.models])
    placement = SlotPlacement(free, draws)
    placed = dict.fromkeys(loads, 0.0)
    for _ in range(ROUNDS):
        for at, load in loads.items():
            placed[at] += placement.place(at, load * pools[at].service_s / ROUNDS)
    return {
        at: min(1.0, placed[at] / (load * pools[at].service_s)) if load > 0.0 else 1.0 for at, load in loads.items()
    }
