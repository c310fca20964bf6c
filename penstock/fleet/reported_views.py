"""The state of each region as an origin's agents see it, as far as the control plane can derive it from reports."""

from __future__ import annotations

from penstock.fleet.snapshot import FRESH_S, Snapshot, pool
from penstock.health.region_health import RegionHealth, RegionState
from penstock.policy.policy import Policy
from penstock.routing.region_selection import RegionView


def reported_views(policy: Policy, snapshot: Snapshot, origin: str, model: str, now: float) -> dict[str, RegionView]:
    """The state of each region as an origin's agents see it, without waits and spill credits, which reports do not
    contain.

    A state is what the newest report of the origin contains for the region, else the control plane's own; that a region
    is degraded, which changes no routing, only the control plane knows.
    """
    held = snapshot.newest(origin)
    is_reporting = held is not None and now - held.received_at <= FRESH_S
    seen = held.report.peers if held is not None and is_reporting else ()
    states = {peer.region: peer.state for peer in seen if peer.state is not RegionState.UNKNOWN}
    views = {}
    for region in policy.regions:
        health = snapshot.health.get(region, RegionHealth())
        state = RegionState.HEALTHY if region == origin and is_reporting else states.get(region, health.state)
        if state is RegionState.DRAINING:
            state = RegionState.HEALTHY  # agents see that it is there; that it is closed they have from their plan
        if state is RegionState.HEALTHY and health.state is RegionState.DEGRADED:
            state = RegionState.DEGRADED
        here = pool(snapshot, region, model, now)
        ready = here is not None and here.report.ready > 0
        weight = health.weight(now, policy.failover) if state is RegionState.RECOVERING is health.state else 1.0
        views[region] = RegionView(state, ready, weight)
    return views
