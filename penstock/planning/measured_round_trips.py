"""Round trips between regions as agents measure them by their probes: the latency term of the planner.

The order of regions by distance, on which agents and planner must agree, stays that of the policy.
"""

from __future__ import annotations

from penstock.fleet.snapshot import FRESH_S, Snapshot

RoundTrips = dict[tuple[str, str], float]
"""Round trip (ms) by origin and server."""


def measured_round_trips(snapshot: Snapshot, now: float) -> RoundTrips:
    """The shortest round trip that an agent of the origin reports, of reports that are fresh at `now`; agents that have
    no measurement yet report the policy's."""
    found: RoundTrips = {}
    for (origin, _), held in snapshot.agents.items():
        if now - held.received_at > FRESH_S:
            continue
        for peer in held.report.peers:
            if peer.region != origin and peer.rtt_ms > 0.0:
                pair = origin, peer.region
                found[pair] = min(peer.rtt_ms, found.get(pair, peer.rtt_ms))
    return found
