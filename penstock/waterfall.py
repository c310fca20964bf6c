"""The greedy planner: fill home to its target, let the rest run down to the next nearest permitted region.

Classes with the fewest permitted regions drink first, since they have the fewest other places to go. It is the
yardstick of any better planner, and the fallback when one fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.interventions import NO_INTERVENTIONS, Interventions, narrowed, scaled
from penstock.plan import RegionPlan
from penstock.policy import Policy
from penstock.slices import Edition, Key, NearestFirst, in_force, planned_for, slices
from penstock.snapshot import Demand, Snapshot, demand
from penstock.steps import without_crumbs
from penstock.supply import Supply, supply


def plan(
    policy: Policy,
    snapshot: Snapshot,
    previous: dict[str, RegionPlan],
    *,
    now: float,
    epoch: int,
    generation: int,
    elapsed_s: float,
    interventions: Interventions = NO_INTERVENTIONS,
) -> dict[str, RegionPlan]:
    """One plan for the planet: a slice for every region of the policy.

    An origin that is not heard from keeps what it had: silence is no news of its demand.

    Args:
        previous: the slices in force, from which shares move at a bounded rate.
        now: the planner's clock, in seconds; for ages and ramps.
        elapsed_s: time since `previous` was made, in seconds.
        interventions: what operators want meanwhile.
    """
    able = supply(policy, snapshot, now)
    demands = planned_for(policy, demand(snapshot, now))
    wanted = pour(policy, narrowed(demands, able, interventions), scaled(able, interventions), policy.nearest_first)
    edition = Edition(generation, epoch, policy.digest(), now, elapsed_s)
    return slices(
        policy,
        snapshot,
        previous,
        in_force(previous, demands),
        demands,
        wanted,
        able,
        edition,
        nearest_first=policy.nearest_first,
        interventions=interventions,
    )


def pour(
    policy: Policy, demands: Mapping[Key, Demand], able: Mapping[tuple[str, str], Supply], nearest_first: NearestFirst
) -> dict[Key, dict[str, float]]:
    """The shares wanted: home first for everybody, then overflow; what fits nowhere stays at home."""
    free = {key: one.slots * policy.spillover.target_utilisation for key, one in able.items()}
    order = sorted(demands.items(), key=lambda one: (len(one[1].regions), one[0]))
    homes: dict[Key, str] = {}
    left: dict[Key, float] = {}
    taken: dict[Key, dict[str, float]] = {}
    for key, one in order:
        home = next((name for name in nearest_first(one.origin, one.regions) if (name, one.model) in able), None)
        if home is not None:
            homes[key], taken[key] = home, {}
            left[key] = one.requests_per_s * able[home, one.model].service_s
    for key, home in homes.items():
        _take(key, home, free, left, taken)
    for key, one in order:
        for region in nearest_first(one.origin, one.regions):
            if left.get(key, 0.0) <= 0.0:
                break
            if (region, one.model) in able:
                _take(key, region, free, left, taken)
    return {key: _shares(taken[key], left[key], home) for key, home in homes.items()}


def _take(
    key: Key,
    region: str,
    free: dict[tuple[str, str], float],
    left: dict[Key, float],
    taken: dict[Key, dict[str, float]],
) -> None:
    amount = min(left[key], free[region, key.model])
    if amount > 0.0:
        free[region, key.model] -= amount
        left[key] -= amount
        taken[key][region] = taken[key].get(region, 0.0) + amount


def _shares(taken: dict[str, float], left: float, home: str) -> dict[str, float]:
    """Amounts to shares. What fits nowhere stays at home, whose agents queue, spill by credit, or refuse it."""
    if not taken and left <= 0.0:
        return {home: 1.0}
    return without_crumbs({**taken, home: taken.get(home, 0.0) + left})
