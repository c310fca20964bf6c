"""What every region can give every model now: what a plan may fill, faded by the age of the news.

A region on its failback ramp has all its slots; what is held back is its part of each class. If its slots were held
back as well, it would look full for as long as the ramp lasts, and get the last of its traffic back after all others.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.fleet.snapshot import FadedPool, Snapshot, pools
from penstock.health.region_health import RegionHealth, RegionState
from penstock.policy.policy import Failover, Policy

KNOWN_AFTER = 50
"""Completions after which a pool's own mean service time is believed whole; before, the fleet's stands for the rest."""


class Supply(msgspec.Struct, frozen=True):
    """What one region can give one model."""

    slots: float
    """Requests that it runs at once, all of them: a plan fills them up to the spillover target."""
    service_s: float
    """Mean time (s) a request holds one."""
    most: float = 1.0
    """The most (0-1] of any class's demand that may go there now: less than all of it on a failback ramp."""


def supply(policy: Policy, snapshot: Snapshot, now: float) -> dict[tuple[str, str], Supply]:
    """By (region, model), of every region that can serve: not failed, some endpoint ready.

    One that is being drained can, too: who may still use it is what overrides say, and not its health. So can one that
    has just begun its failback ramp, which grants it nothing yet.

    Args:
        now: the planner's clock, in seconds; for ages and ramps.
    """
    weights = {
        region: _standing(snapshot.health.get(region, RegionHealth()), now, policy.failover)
        for region in policy.regions
    }
    found = {}
    seen_pools = pools(snapshot, now)
    learnt_s = _learnt_s(seen_pools)
    for (region, model), seen in sorted(seen_pools.items()):
        weight = weights.get(region)
        if weight is not None and model in policy.models and seen.report.ready > 0:
            own_s, known = seen.report.service_s, min(1.0, seen.report.completions / KNOWN_AFTER)
            service_s = known * own_s + (1.0 - known) * learnt_s.get(model, own_s)
            service_s = service_s or policy.models[model].expected_service_s
            found[region, model] = Supply(seen.report.slots * seen.counts, service_s, weight)
    return found


def _learnt_s(seen: Mapping[tuple[str, str], FadedPool]) -> dict[str, float]:
    """Mean service time (s) of each model by the pools that know theirs, each slot counting as much as its news does.

    It stands in for that of a pool as far as that has served little yet. Policy's prior may be far from what all others
    measure, and a region that just returned would look slow for it, get no requests, and never learn better.
    """
    slots: dict[str, float] = {}
    busy: dict[str, float] = {}
    for (_, model), one in seen.items():
        if one.report.completions >= KNOWN_AFTER and one.report.service_s > 0.0 and one.report.slots > 0:
            weight = one.report.slots * one.counts
            slots[model] = slots.get(model, 0.0) + weight
            busy[model] = busy.get(model, 0.0) + weight * one.report.service_s
    return {model: busy[model] / slots[model] for model in slots}


def _standing(health: RegionHealth, now: float, failover: Failover) -> float | None:
    """How much of the region counts; None where it is not there."""
    if health.state in (RegionState.UNKNOWN, RegionState.FAILED):
        return None
    return 1.0 if health.state is RegionState.DRAINING else health.weight(now, failover)
