"""Region health that one leader hands over to the next, inside the plan.

Failure detection may restart with every leader, since it takes a second. Hold-down and failback ramp must continue:
otherwise a region that has just failed, or is degraded, would count as healthy under the next leader, and flap with
each change of leadership. The state is part of the plan, so it is fenced like the plan and covers exactly what agents
apply. A state that is older than FADED_S is advanced as if the region had been healthy since.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.fleet.snapshot import FADED_S
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.kinds.spillover_and_failover import Failover

HANDED_OVER = frozenset({RegionState.FAILED, RegionState.RECOVERING, RegionState.DRAINING, RegionState.DEGRADED})
"""States that one good report does not end; the other states are not handed over."""


def health_to_hand_over(health: RegionHealth) -> RegionHealth | None:
    """Returns the part of a region's health that a plan contains, which changes only with the state; None for a state
    that is not handed over."""
    if health.state not in HANDED_OVER:
        return None
    weak = health.state is RegionState.DEGRADED
    return RegionHealth(health.state, health.since, drained=health.drained, weak=weak)


def inherited_health(slices: Mapping[str, RegionPlan], now: float, failover: Failover) -> dict[str, RegionHealth]:
    """Returns the unhealthy state of regions that a new leader starts with.

    Args:
        slices: the plan in force.
        now: Unix time (s) by the new leader's clock; the former leader's may differ.
    """
    found = {}
    for region, plan in slices.items():
        if plan.health is not None:
            health = _as_of_now(plan.health, plan.made_at, now, failover)
            if health is not None:
                found[region] = health
    return found


def _as_of_now(health: RegionHealth, made_at: float, now: float, failover: Failover) -> RegionHealth | None:
    """Returns the health handed over at `made_at`; None if it no longer applies. Health older than FADED_S is advanced
    as if the region had been healthy since `made_at`."""
    health = msgspec.structs.replace(health, since=min(health.since, now))
    if now - made_at <= FADED_S:
        return health
    if health.state is RegionState.FAILED:
        risen_at = max(made_at, health.since + failover.hold_down_s)
        if risen_at > now:
            return health
        health = RegionHealth(RegionState.RECOVERING, risen_at)
    # Draining regions need no handover: the store contains the overrides with their end.
    returning = health.state is RegionState.RECOVERING and health.weight(now, failover) < 1.0
    return health if returning else None
