"""The greedy planner: fill home to its target, let the rest run down to the next nearest permitted region.

Classes with the fewest permitted regions drink first, since they have the fewest other places to go. It is the
yardstick of any better planner, and the fallback when one fails.
"""

from __future__ import annotations

import msgspec

from penstock.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy import Policy
from penstock.region_health import RegionHealth, RegionState
from penstock.snapshot import Demand, Snapshot, demand, heard_from, pool
from penstock.steps import step_towards, without_crumbs


class Supply(msgspec.Struct, frozen=True):
    """What one region can give one model, in concurrent requests."""

    slots: float
    """Up to the spillover target; what a plan fills."""
    service_s: float


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
    supply = _supply(policy, snapshot, now)
    demands = [one for one in demand(snapshot, now) if one.model in policy.models and one.origin in policy.regions]
    poured = _pour(policy, demands, supply)
    classes: dict[str, list[ClassPlan]] = {
        region: [] if heard_from(snapshot, region, now) else _still_standing(previous.get(region), policy)
        for region in policy.regions
    }
    for one in demands:
        target = poured[one.origin, one.model, one.residency]
        if not target:
            continue
        shares = step_towards(
            _shares_in_force(previous.get(one.origin), one),
            target,
            policy.spillover.step_per_s * elapsed_s,
            alive={region for region, model in supply if model == one.model},
        )
        classes[one.origin].append(_class_plan(policy, snapshot, one, shares, supply))
    digest = policy.digest()
    return {
        region: RegionPlan(region, generation, epoch, digest, now, tuple(entries))
        for region, entries in classes.items()
    }


def _still_standing(before: RegionPlan | None, policy: Policy) -> list[ClassPlan]:
    """A slice's classes whose model and servers the policy still has; what a class permits lies in its name."""
    return [
        msgspec.structs.replace(one, fallbacks=tuple(name for name in one.fallbacks if name in policy.regions))
        for one in (before.classes if before is not None else ())
        if one.model in policy.models and all(arc.server in policy.regions for arc in one.arcs)
    ]


def _shares_in_force(before: RegionPlan | None, one: Demand) -> dict[str, float]:
    """The shares to move from: none where the plan in force knows no such class, or sends it where it may not be."""
    entry = before.lookup(one.model, one.residency) if before is not None else None
    if entry is None or any(arc.server not in one.regions for arc in entry.arcs):
        return {}
    return {arc.server: arc.share for arc in entry.arcs}


def _supply(policy: Policy, snapshot: Snapshot, now: float) -> dict[tuple[str, str], Supply]:
    """Capacity by (region, model) of every region that may be planned for, faded by age and ramp."""
    supply = {}
    for region in policy.regions:
        weight = snapshot.health.get(region, RegionHealth()).weight(now, policy.failover)
        if weight <= 0.0:
            continue
        for model in policy.models:
            seen = pool(snapshot, region, model, now)
            if seen is not None and seen.report.ready > 0:
                slots = seen.report.slots * weight * seen.counts
                service_s = seen.report.service_s or policy.models[model].expected_service_s
                supply[region, model] = Supply(slots * policy.spillover.target_utilisation, service_s)
    return supply


def _pour(
    policy: Policy, demands: list[Demand], supply: dict[tuple[str, str], Supply]
) -> dict[tuple[str, str, str], dict[str, float]]:
    """Shares by (origin, model, residency): home first for everybody, then overflow, then what fits nowhere."""
    free = {key: one.slots for key, one in supply.items()}
    order = sorted(demands, key=lambda one: (len(one.regions), one.origin, one.model, one.residency))
    places: dict[tuple[str, str, str], tuple[str, ...]] = {}
    left: dict[tuple[str, str, str], float] = {}
    taken: dict[tuple[str, str, str], dict[str, float]] = {}
    for one in order:
        key = (one.origin, one.model, one.residency)
        usable = frozenset(r for r in one.regions & policy.regions.keys() if (r, one.model) in supply)
        places[key] = policy.nearest_first(one.origin, usable)
        service_s = supply[places[key][0], one.model].service_s if usable else 0.0
        left[key] = one.requests_per_s * service_s
        taken[key] = {}
    for depth in (slice(0, 1), slice(1, None)):
        for key, regions in places.items():
            for region in regions[depth]:
                take = min(left[key], free[region, key[1]])
                if take > 0.0:
                    free[region, key[1]] -= take
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


def _class_plan(
    policy: Policy,
    snapshot: Snapshot,
    one: Demand,
    shares: dict[str, float],
    supply: dict[tuple[str, str], Supply],
) -> ClassPlan:
    nearest = policy.nearest_first(one.origin, one.regions & policy.regions.keys())
    home = next((name for name in nearest if not _lacks(snapshot, name, one.model)), nearest[0])
    away = _why_away(snapshot.state(home), (home, one.model) in supply)
    arcs = tuple(
        Arc(server, shares[server], ArcReason.HOME if server == home else away)
        for server in sorted(shares, key=nearest.index)
    )
    fallbacks = tuple(name for name in nearest if name not in shares and (name, one.model) in supply)
    return ClassPlan(one.model, one.residency, arcs, fallbacks)


def _lacks(snapshot: Snapshot, region: str, model: str) -> bool:
    """Whether the region's agents say that it has no endpoints of the model at all; dead ones do count."""
    words = snapshot.of(region)
    return bool(words) and not any(
        pool.model == model and pool.endpoints > 0 for held in words for pool in held.report.pools
    )


def _why_away(home: RegionState, home_serves: bool) -> ArcReason:
    if home is RegionState.RECOVERING:
        return ArcReason.FAILBACK
    return ArcReason.SPILLOVER if home_serves else ArcReason.FAILOVER
