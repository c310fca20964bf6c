"""Capacity that a plan may use, weighted by the age of the reports, and the capacity that is missing.

A region on its failback ramp offers all of its slots; the ramp limits its share of each class instead. If its slots
were limited as well, the region would appear full for the whole ramp and be the last to receive its traffic again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.fleet.capacity_groups import SharedSlots, coupled_models
from penstock.fleet.snapshot import FadedPool, Snapshot, pools
from penstock.health.region_health import RegionHealth, RegionState
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.policy.policy import Policy

MIN_COMPLETIONS = 50
"""Completions from which on a pool's own mean service time is used alone; below, it is mixed with the fleet's mean."""

MIN_WEIGHT = 1e-3
"""Slots added to every pool in a mean that is weighted by slots, so that a pool without slots has a weight."""


class Supply(msgspec.Struct, frozen=True):
    """Capacity of one region for one model."""

    slots: float
    """Concurrent requests, of which a plan uses the share that the spillover target allows."""
    service_s: float
    """Mean time (s) for which a request holds a slot."""
    max_share: float = 1.0
    """Maximum share (0-1) of any class's demand that the region may serve now: below 1 on a failback ramp, which begins
    at 0."""
    shared: tuple[SharedSlots, ...] = ()
    """The part of `slots` that other models may use as well, by capacity group."""
    work: float = 1.0
    """Work of one request in units that all models with shared slots have in common; the same in every region. The
    time for which one unit holds a slot, `service_s / work`, is the same for all of these models in a region."""

    @property
    def own_slots(self) -> float:
        """The part of `slots` that no other model may use."""
        return max(0.0, self.slots - sum(group.slots for group in self.shared))


class Shortfall(msgspec.Struct, frozen=True):
    """Capacity that one model lacks, now or after the loss of one region."""

    model: str
    residency: tuple[str, ...]
    """Names of the residency classes whose demand the missing capacity affects."""
    regions: tuple[str, ...]
    """Regions in each of which more capacity would reduce the shortfall; empty if the classes permit only the lost
    region."""
    lost: str | None
    """The region whose loss causes the shortfall; None if capacity is missing now, for serving within the target."""
    requests_per_s: float
    slots: float
    """The missing capacity in concurrent requests, at the mean service time of `regions`."""


def supply(policy: Policy, snapshot: Snapshot, now: float) -> dict[tuple[str, str], Supply]:
    """Returns the capacity of every region that can serve (known, not failed, an endpoint ready), by (region, model).

    A draining region is included: overrides decide which traffic may still use it, not its health. A region that has
    just begun its failback ramp is included as well, with a share of zero.

    Args:
        now: the planner's clock, in seconds; determines ages and ramps.
    """
    weights = {
        region: _share_limit(snapshot.health.get(region, RegionHealth()), now, policy.failover)
        for region in policy.regions
    }
    found = {}
    seen_pools = pools(snapshot, now)
    times_s = service_times(policy, seen_pools)
    for (region, model), seen in sorted(seen_pools.items()):
        weight = weights.get(region)
        if weight is not None and model in policy.models and seen.report.ready > 0:
            shared = _shared_slots(seen, policy)
            slots = max(seen.report.slots * seen.weight, sum(group.slots for group in shared))
            found[region, model] = Supply(slots, times_s[region, model], weight, shared)
    return _in_common_units(found)


def service_times(policy: Policy, seen: Mapping[tuple[str, str], FadedPool]) -> dict[tuple[str, str], float]:
    """Returns the mean service time (s) of each pool whose model the policy has, by (region, model).

    A pool with few completions, such as one that stands by for the loss of another region, reports little more than
    its prior: the fleet's mean counts instead, and without one the policy's expected time.
    """
    fleet_mean_s, found = _fleet_mean_s(seen), {}
    for (region, model), pool in seen.items():
        if model in policy.models:
            own_s, known = pool.report.service_s, min(1.0, pool.report.completions / MIN_COMPLETIONS)
            service_s = known * own_s + (1.0 - known) * fleet_mean_s.get(model, own_s)
            found[region, model] = service_s or policy.models[model].expected_service_s
    return found


def _shared_slots(seen: FadedPool, policy: Policy) -> tuple[SharedSlots, ...]:
    """Returns the slots that models of the policy share, by set of models."""
    slots: dict[tuple[str, ...], float] = {}
    for group in seen.groups:
        models = tuple(name for name in group.models if name in policy.models)
        if len(models) > 1:
            slots[models] = slots.get(models, 0.0) + group.slots * seen.weight
    return tuple(SharedSlots(models, count) for models, count in sorted(slots.items()))


def _in_common_units(found: dict[tuple[str, str], Supply]) -> dict[tuple[str, str], Supply]:
    """Returns the capacity with service times that are the product of a time per model and a speed per region, for
    models that share slots.

    Such models run on the same hardware, so a region that is slow for one model is slow for the others. With this
    product, the capacity of the slots of a region does not depend on the mix of models.
    """
    coupled = coupled_models(group.models for pool in found.values() for group in pool.shared)
    if not coupled:
        return found
    slots: dict[str, float] = {}
    busy: dict[str, float] = {}
    for (_, model), pool in found.items():
        slots[model] = slots.get(model, 0.0) + pool.slots + MIN_WEIGHT
        busy[model] = busy.get(model, 0.0) + (pool.slots + MIN_WEIGHT) * pool.service_s
    mean_s = {model: busy[model] / slots[model] for model in slots}
    weight: dict[tuple[str, tuple[str, ...]], float] = {}
    slowness: dict[tuple[str, tuple[str, ...]], float] = {}
    for (region, model), pool in found.items():
        if model in coupled:
            at = region, coupled[model]
            weight[at] = weight.get(at, 0.0) + pool.slots + MIN_WEIGHT
            slowness[at] = slowness.get(at, 0.0) + (pool.slots + MIN_WEIGHT) * pool.service_s / mean_s[model]
    for (region, model), pool in found.items():
        if model in coupled:
            at, unit_s = (region, coupled[model]), mean_s[coupled[model][0]]
            found[region, model] = msgspec.structs.replace(
                pool, service_s=mean_s[model] * slowness[at] / weight[at], work=mean_s[model] / unit_s
            )
    return found


def _fleet_mean_s(seen: Mapping[tuple[str, str], FadedPool]) -> dict[str, float]:
    """Returns the mean service time (s) of each model over the pools with enough completions, weighted by slots and
    age.

    The fleet's mean substitutes for the mean of a pool with few completions. The policy's prior may be far from the
    measured times, so with the prior a region that has just returned could appear slow, receive no requests, and never
    correct its mean.
    """
    slots: dict[str, float] = {}
    busy: dict[str, float] = {}
    for (_, model), pool in seen.items():
        report = pool.report
        if report.completions >= MIN_COMPLETIONS and report.service_s > 0.0 and report.slots > 0:
            weight = report.slots * pool.weight
            slots[model] = slots.get(model, 0.0) + weight
            busy[model] = busy.get(model, 0.0) + weight * report.service_s
    return {model: busy[model] / slots[model] for model in slots}


def _share_limit(health: RegionHealth, now: float, failover: Failover) -> float | None:
    """Returns the share (0-1) of each class that a region may serve; None if the region is unknown or failed."""
    if health.state in (RegionState.UNKNOWN, RegionState.FAILED):
        return None
    return 1.0 if health.state is RegionState.DRAINING else health.weight(now, failover)
