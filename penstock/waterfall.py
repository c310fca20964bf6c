"""The greedy planner: fill home to its target, let the rest run down to the next nearest permitted region.

Classes with the fewest permitted regions drink first, since they have the fewest other places to go. It is the
yardstick of any better planner, and the fallback when one fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.plan import RegionPlan
from penstock.policy import Policy
from penstock.slices import Edition, Key, NearestFirst, planned_for, slices
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
) -> dict[str, RegionPlan]:
    """One plan for the planet: a slice for every region of the policy.

    An origin that is not heard from keeps what it had: silence is no news of its demand.

    Args:
        previous: the slices in force, from which shares move at a bounded rate.
        now: the planner's clock, in seconds; for ages and ramps.
        elapsed_s: time since `previous` was made, in seconds.
    """
    able = supply(policy, snapshot, now)
    demands = planned_for(policy, demand(snapshot, now))
    wanted = pour(policy, demands, able, policy.nearest_first)
    edition = Edition(generation, epoch, policy.digest(), now, elapsed_s)
    return slices(policy, snapshot, previous, demands, wanted, able, edition, nearest_first=policy.nearest_first)


def pour(
    policy: Policy, demands: list[Demand], able: Mapping[tuple[str, str], Supply], nearest_first: NearestFirst
) -> dict[Key, dict[str, float]]:
    """The shares wanted: home first for everybody, then overflow; what fits nowhere stays at home."""
    free = {key: one.slots * policy.spillover.target_utilisation for key, one in able.items()}
    order = sorted(demands, key=lambda one: (len(one.regions), one.origin, one.model, one.residency))
    places: dict[Key, tuple[str, ...]] = {}
    left: dict[Key, float] = {}
    taken: dict[Key, dict[str, float]] = {}
    for one in order:
        key = Key(one.origin, one.model, one.residency)
        permitted = nearest_first(one.origin, one.regions & policy.regions.keys())
        places[key] = tuple(region for region in permitted if (region, one.model) in able)
        service_s = able[places[key][0], one.model].service_s if places[key] else 0.0
        left[key] = one.requests_per_s * service_s
        taken[key] = {}
    for depth in (slice(0, 1), slice(1, None)):
        for key, regions in places.items():
            for region in regions[depth]:
                take = min(left[key], free[region, key.model])
                if take > 0.0:
                    free[region, key.model] -= take
                    left[key] -= take
                    taken[key][region] = taken[key].get(region, 0.0) + take
    return {key: _shares(taken[key], left[key], regions) for key, regions in places.items()}


def _shares(taken: dict[str, float], left: float, regions: tuple[str, ...]) -> dict[str, float]:
    """Amounts to shares. What fits nowhere stays at home, whose agents queue, spill by credit, or refuse it."""
    if not regions:
        return {}
    home = regions[0]
    if not taken and left <= 0.0:
        return {home: 1.0}
    return without_crumbs({**taken, home: taken.get(home, 0.0) + left})
