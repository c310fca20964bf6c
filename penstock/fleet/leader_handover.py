"""What one leader tells the next of regions: what is not well with them, and it counts for less as it gets older.

Detection may begin anew with every leader, since it takes a second. Hold-down and ramp may not: a region that failed
just now would be whole again with the next leader, and flap along with leadership. A degraded one would be called
healthy for a while with each. It travels in the plan, so it is fenced as plans are, and there is just as much of it as
agents obey.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.fleet.snapshot import FADED_S
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Failover

TOLD = frozenset({RegionState.FAILED, RegionState.RECOVERING, RegionState.DRAINING, RegionState.DEGRADED})
"""States that are left by more than a good report; of the others there is nothing to tell."""


def told(health: RegionHealth) -> RegionHealth | None:
    """What a plan tells of a region: what stays the same while its state does, or nothing."""
    if health.state not in TOLD:
        return None
    weak = health.state is RegionState.DEGRADED
    return RegionHealth(health.state, health.since, drained=health.drained, weak=weak)


def inheritance(slices: Mapping[str, RegionPlan], now: float, failover: Failover) -> dict[str, RegionHealth]:
    """What is still to be held against regions by whoever begins to lead.

    Args:
        slices: the plan in force.
        now: Unix time (s) by our clock; the other leader's may differ.
    """
    found = {}
    for region, plan in slices.items():
        if plan.health is not None:
            health = _as_of_now(plan.health, plan.made_at, now, failover)
            if health is not None:
                found[region] = health
    return found


def _as_of_now(health: RegionHealth, told_at: float, now: float, failover: Failover) -> RegionHealth | None:
    """A belief of `told_at`; one that faded is worth no more than if the region had been good all the time since."""
    health = msgspec.structs.replace(health, since=min(health.since, now))
    if now - told_at <= FADED_S:
        return health
    if health.state is RegionState.FAILED:
        risen_at = max(told_at, health.since + failover.hold_down_s)
        if risen_at > now:
            return health
        health = RegionHealth(RegionState.RECOVERING, risen_at)
    # How drains end is in the store, with its time.
    returning = health.state is RegionState.RECOVERING and health.weight(now, failover) < 1.0
    return health if returning else None
