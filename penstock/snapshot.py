"""The fleet as last reported: what the planner plans from. Every number carries its age, and old news fades.

Reports come from agents that may be late, restarted, confused or hostile; `take_in` keeps the newest plausible one of
each agent and says why it refused another. A region's health is judged by more than its own word: its peers' probes
count for more than its silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import isfinite

import msgspec

from penstock.policy import Policy
from penstock.region_health import RegionHealth, RegionState, observe
from penstock.report import AgentReport, PoolReport

FRESH_S = 2.0
"""A report this old (s) still counts in full: agents report about once a second."""

FADED_S = 15.0
"""A report this old (s) counts for nothing."""

FORGET_S = 300.0
"""An agent silent for this long (s) is dropped from the snapshot."""

LARGEST_COUNT = 1_000_000
"""No pool has more endpoints, slots or requests in flight than this; a report that says so is impossible."""


class Verdict(StrEnum):
    """What became of a report."""

    ACCEPTED = "accepted"
    OLD_EPOCH = "old_epoch"
    OLD_SEQ = "old_seq"
    UNKNOWN_REGION = "unknown_region"
    IMPOSSIBLE = "impossible"


class Held(msgspec.Struct, frozen=True):
    """An agent's newest report and when it arrived, by the control plane's clock (s)."""

    report: AgentReport
    received_at: float


class Snapshot(msgspec.Struct, frozen=True):
    """Everything known of the fleet, and since when."""

    agents: dict[tuple[str, str], Held] = {}
    """By (region, agent)."""
    health: dict[str, RegionHealth] = {}

    def newest(self, region: str) -> Held | None:
        """The freshest report of a region's agents."""
        held = [one for (where, _), one in self.agents.items() if where == region]
        return max(held, key=lambda one: one.received_at, default=None)

    def state(self, region: str) -> RegionState:
        """The control plane's belief about a region."""
        return self.health.get(region, RegionHealth()).state


def freshness(age_s: float) -> float:
    """How much a number this old counts: 1 while fresh, then linearly down to 0."""
    return max(0.0, min(1.0, (FADED_S - age_s) / (FADED_S - FRESH_S)))


def take_in(snapshot: Snapshot, report: AgentReport, now: float, policy: Policy) -> tuple[Snapshot, Verdict]:
    """Add a report, or refuse it and leave the snapshot as it was."""
    key = (report.region, report.agent)
    if report.region not in policy.regions:
        return snapshot, Verdict.UNKNOWN_REGION
    if not _possible(report):
        return snapshot, Verdict.IMPOSSIBLE
    before = snapshot.agents.get(key)
    if before is not None:
        if report.epoch < before.report.epoch:
            return snapshot, Verdict.OLD_EPOCH
        if report.epoch == before.report.epoch and report.seq <= before.report.seq:
            return snapshot, Verdict.OLD_SEQ
    return Snapshot({**snapshot.agents, key: Held(report, now)}, snapshot.health), Verdict.ACCEPTED


def tick(snapshot: Snapshot, now: float, policy: Policy) -> Snapshot:
    """Let time pass: judge every region once and forget agents that have long been silent."""
    agents = {key: held for key, held in snapshot.agents.items() if now - held.received_at < FORGET_S}
    kept = Snapshot(agents, snapshot.health)
    health = {
        region: observe(kept.health.get(region, RegionHealth()), _seems_good(kept, region, now), now, policy.failover)
        for region in policy.regions
    }
    return Snapshot(agents, health)


def pool(snapshot: Snapshot, region: str, model: str, now: float) -> PoolReport | None:
    """A region's pool for one model by its freshest report: every agent of a region sees the same endpoints."""
    held = snapshot.newest(region)
    if held is None or freshness(now - held.received_at) <= 0.0:
        return None
    return next((pool for pool in held.report.pools if pool.model == model), None)


class Demand(msgspec.Struct, frozen=True):
    """What one origin is asked for in one traffic class, over all its agents."""

    origin: str
    model: str
    residency: str
    regions: frozenset[str]
    requests_per_s: float


def demand(snapshot: Snapshot, now: float) -> list[Demand]:
    """Offered demand by origin and traffic class, faded by the age of the reports that told of it."""
    total: dict[tuple[str, str, str], float] = {}
    members: dict[str, frozenset[str]] = {}
    for (region, _), held in snapshot.agents.items():
        weight = freshness(now - held.received_at)
        if weight <= 0.0:
            continue
        for one in held.report.demand:
            key = (region, one.model, one.residency)
            total[key] = total.get(key, 0.0) + weight * one.requests_per_s
            members[one.residency] = frozenset(one.regions)
    return [
        Demand(origin, model, residency, members[residency], rate)
        for (origin, model, residency), rate in sorted(total.items())
    ]


def _seems_good(snapshot: Snapshot, region: str, now: float) -> bool:
    """Peers' probes decide where there are any; else the region's own word, while it is fresh and has endpoints."""
    votes = list(_peer_votes(snapshot, region, now))
    if votes:
        return sum(votes) * 2 > len(votes)
    held = snapshot.newest(region)
    return held is not None and now - held.received_at <= FRESH_S and any(pool.ready > 0 for pool in held.report.pools)


def _peer_votes(snapshot: Snapshot, region: str, now: float) -> Iterable[bool]:
    for (observer, _), held in snapshot.agents.items():
        if observer == region or now - held.received_at > FRESH_S:
            continue
        for peer in held.report.peers:
            if peer.region == region and peer.state is not RegionState.UNKNOWN:
                yield peer.state is not RegionState.FAILED


def _possible(report: AgentReport) -> bool:
    counts = [n for pool in report.pools for n in (pool.endpoints, pool.ready, pool.slots, pool.in_flight)]
    rates = [pool.service_s for pool in report.pools] + [one.requests_per_s for one in report.demand]
    return (
        all(0 <= n <= LARGEST_COUNT for n in counts)
        and all(isfinite(rate) and 0.0 <= rate <= LARGEST_COUNT for rate in rates)
        and all(pool.ready <= pool.endpoints for pool in report.pools)
    )
