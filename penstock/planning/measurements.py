"""What agents measure in place of what policy assumes: round trips and sizes of messages, for the planner's terms.

The order of regions by distance, on which agents and planner must agree, stays that of the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log10
from types import MappingProxyType
from typing import NamedTuple

from penstock.fleet.counts.message_bytes import MessageBytes, prior_bytes
from penstock.fleet.snapshot import FRESH_S, Snapshot
from penstock.policy.policy import Policy

RoundTrips = Mapping[tuple[str, str], float]
"""Round trip (ms) by origin and server."""

DIGITS = 2
"""Significant digits of measured sizes: a size that changes a little shall not change a plan."""


class Measurements(NamedTuple):
    """The measurements of all agents."""

    round_trips_ms: RoundTrips = MappingProxyType({})
    message_bytes: Mapping[str, MessageBytes] = MappingProxyType({})
    """Mean sizes by model; only models of which requests were measured."""


def measurements(policy: Policy, snapshot: Snapshot, now: float) -> Measurements:
    """The measurements in the reports that are fresh at `now` (s)."""
    return Measurements(measured_round_trips(snapshot, now), measured_bytes(policy, snapshot, now))


def measured_round_trips(snapshot: Snapshot, now: float) -> dict[tuple[str, str], float]:
    """The shortest round trip that an agent of the origin reports, of reports that are fresh at `now`; agents that have
    no measurement yet report the policy's."""
    found: dict[tuple[str, str], float] = {}
    for (origin, _), held in snapshot.agents.items():
        if now - held.received_at > FRESH_S:
            continue
        for peer in held.report.peers:
            if peer.region != origin and peer.rtt_ms > 0.0:
                pair = origin, peer.region
                found[pair] = min(peer.rtt_ms, found.get(pair, peer.rtt_ms))
    return found


def measured_bytes(policy: Policy, snapshot: Snapshot, now: float) -> dict[str, MessageBytes]:
    """The mean sizes of requests and responses by model, of all agents whose reports are fresh at `now`."""
    found: dict[str, MessageBytes] = {}
    for held in snapshot.agents.values():
        if now - held.received_at > FRESH_S:
            continue
        for row in held.report.message_bytes:
            model = policy.models.get(row.model)
            if model is not None and row.requests > 0:
                found[model.name] = (found.get(model.name) or prior_bytes(model)).merged(row)
    return {
        name: MessageBytes(name, row.requests, _rounded(row.request_bytes), _rounded(row.response_bytes))
        for name, row in found.items()
    }


def _rounded(size_bytes: float) -> float:
    return round(size_bytes, DIGITS - 1 - floor(log10(size_bytes))) if size_bytes >= 1.0 else 0.0
