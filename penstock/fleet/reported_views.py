"""The state of each region at an origin's agents, as far as the control plane can derive it from reports."""

from __future__ import annotations

from penstock.fleet.expected_wait import headroom_slots
from penstock.fleet.snapshot import FRESH_S, Snapshot, pools
from penstock.health.region_health import RegionHealth, RegionState
from penstock.policy.policy import Policy
from penstock.routing.region_selection import RegionView


def reported_views(policy: Policy, snapshot: Snapshot, origin: str, model: str, now: float) -> dict[str, RegionView]:
    """Returns the state of each region at an origin's agents, without waits and spill credits, which reports do not
    contain. The room for batch requests is all headroom of the region, of which its agents grant batch credits.

    The state of a region is from the newest report of the origin, otherwise from the control plane. The state DEGRADED,
    which does not affect routing, is from the control plane only.
    """
    held = snapshot.newest(origin)
    is_reporting = held is not None and now - held.received_at <= FRESH_S
    seen = held.report.peers if held is not None and is_reporting else ()
    states = {peer.region: peer.state for peer in seen if peer.state is not RegionState.UNKNOWN}
    found = pools(snapshot, now)
    views = {}
    for region in policy.regions:
        health = snapshot.health.get(region, RegionHealth())
        state = RegionState.HEALTHY if region == origin and is_reporting else states.get(region, health.state)
        if state is RegionState.DRAINING:
            # Agents can reach a draining region; only the plan closes the region to them.
            state = RegionState.HEALTHY
        if state is RegionState.HEALTHY and health.state is RegionState.DEGRADED:
            state = RegionState.DEGRADED
        here = found.get((region, model))
        ready = here is not None and here.report.ready > 0
        weight = health.weight(now, policy.failover) if state is RegionState.RECOVERING is health.state else 1.0
        room = 0
        if here is not None:
            room = headroom_slots(here.report.in_flight, here.report.slots, policy.spillover.target_utilisation)
        views[region] = RegionView(state, ready, weight, batch_room=room)
    return views
