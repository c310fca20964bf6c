"""The fleet as last reported: what the planner plans from. Every number carries its age, and old news fades.

Reports come from agents that may be late, restarted, confused or hostile; `take_in` keeps the newest plausible one of
each agent and says why it refused another. A region's health is judged by more than its own word: what the majority of
the other regions sees of it decides, and its own word only where they are split or silent.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import StrEnum
from math import isfinite

import msgspec

from penstock.fleet.endpoint_report import MAX_ENDPOINTS
from penstock.fleet.report import AgentReport, PoolReport
from penstock.health.region_health import RegionEvent, RegionHealth, RegionState, command, observe
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class

FRESH_S = 2.0
"""A report this old (s) still counts in full: agents report about once a second."""

FADED_S = 15.0
"""A report this old (s) counts for nothing."""

DEAF_S = 1.0
"""Nobody at all heard for this long (s): several regions do not fall silent at once, so it is we who do not hear."""

FORGET_S = 300.0
"""An agent silent for this long (s) is dropped from the snapshot."""

SETTLE_S = 3.0
"""A new leader waits this long (s) for the regions' reports before it plans without those that are missing."""

MAX_AGENTS = 1_000
"""Agents of one region that are remembered; more than any region runs, few enough to hold."""

MAX_NAME = 255
"""Characters of an agent's name."""

MAX_PLAN_NUMBER = 2**53 - 1
"""No plan has a larger epoch or generation: epochs are revisions of the store, and JSON carries this exactly."""

MAX_COUNT = 1_000_000
"""No pool has more endpoints, slots or requests in flight than this; a report that says so is impossible."""


class Verdict(StrEnum):
    """What became of a report."""

    ACCEPTED = "accepted"
    OLD_EPOCH = "old_epoch"
    OLD_SEQ = "old_seq"
    UNKNOWN_REGION = "unknown_region"
    TOO_MANY_AGENTS = "too_many_agents"
    IMPOSSIBLE = "impossible"
    """Numbers that cannot be, or a residency class whose name is not that of its regions."""


class Held(msgspec.Struct, frozen=True):
    """An agent's newest report and when it arrived, by the control plane's clock (s)."""

    report: AgentReport
    """With the endpoints that it told of last."""
    received_at: float
    endpoints_at: float = 0.0
    """When the report arrived that told of endpoints."""


class Snapshot(msgspec.Struct, frozen=True):
    """Everything known of the fleet, and since when."""

    agents: dict[tuple[str, str], Held] = {}
    """By (region, agent)."""
    health: dict[str, RegionHealth] = {}
    inherited: dict[str, RegionHealth] = {}
    """What whoever led before held against regions: where judging them begins, once there is any word of them."""

    def newest(self, region: str) -> Held | None:
        """The freshest report of a region's agents."""
        return max(self.of(region), key=lambda one: one.received_at, default=None)

    def of(self, region: str) -> list[Held]:
        """The newest report of each of a region's agents."""
        return [held for (where, _), held in self.agents.items() if where == region]

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
    elif len(snapshot.of(report.region)) >= MAX_AGENTS:
        return snapshot, Verdict.TOO_MANY_AGENTS
    aged = _aged_while_heard(snapshot, now)
    after = msgspec.structs.replace(snapshot, agents={**aged, key: _held(report, aged.get(key), now)})
    return after, Verdict.ACCEPTED


def tick(snapshot: Snapshot, now: float, policy: Policy, drained: Container[str] = ()) -> Snapshot:
    """Let time pass: judge every region of which anything was ever heard, and forget agents that have long been silent.

    A region of which nothing was heard stays unknown: a leader that has just begun to listen has seen no failure. When
    several regions reported and all of them are silent, that says more of who listens than of them, and beliefs stay.

    Args:
        drained: regions that operators want empty now; one that no longer is returns by the failback ramp.
    """
    agents = {key: held for key, held in snapshot.agents.items() if now - held.received_at < FORGET_S}
    kept = msgspec.structs.replace(snapshot, agents=agents)
    listened = _listened_until(kept, now)
    health = {}
    for region in policy.regions:
        before = snapshot.health.get(region, RegionHealth())
        good = _seems_good(kept, region, listened)
        if region not in snapshot.health and (good is not None or region in drained):
            before = snapshot.inherited.get(region, before)
        if good is not None:
            health[region] = observe(before, good, now, policy.failover, _ready_share(kept, region, listened))
        elif before.state is not RegionState.UNKNOWN:
            health[region] = observe(before, False, now, policy.failover)
        if (region in drained) is not before.drained:
            event = RegionEvent.DRAIN if region in drained else RegionEvent.UNDRAIN
            health[region] = command(health.get(region, before), event, now)
    return msgspec.structs.replace(kept, health=health)


def resume(snapshot: Snapshot, now: float) -> Snapshot:
    """What a new leader may still believe of what it last heard: the reports of just now, and no judgement.

    Agents report to the leader alone, so the silence that a follower judged regions by is no sign of a failure. What
    the leader before held against them it may `inherit`.
    """
    return Snapshot({key: held for key, held in snapshot.agents.items() if now - held.received_at <= FRESH_S})


def inherit(snapshot: Snapshot, beliefs: Mapping[str, RegionHealth]) -> Snapshot:
    """Let judging regions begin where whoever led before was with them.

    That takes the place of what is thought of them already. One of which nothing is heard stays unknown: on the word of
    another alone nobody is given traffic, nor said to be silent.

    Args:
        beliefs: what was not well with regions, as far as it still counts (`penstock.fleet.leader_handover`).
    """
    health = {region: one for region, one in snapshot.health.items() if region not in beliefs}
    return msgspec.structs.replace(snapshot, health=health, inherited=dict(beliefs))


def settled(snapshot: Snapshot, now: float, policy: Policy, leading_since: float) -> bool:
    """Whether a leader has heard enough to plan: every region's word, or it has waited for it long enough.

    That is SETTLE_S, but for a region that others reach: there it is we who do not hear, and its traffic is not taken
    away sooner than by a leader that would have heard it before.
    """
    silent = policy.regions.keys() - {
        region for (region, _), held in snapshot.agents.items() if now - held.received_at <= FRESH_S
    }
    waited_s = now - leading_since
    if not silent or waited_s >= FADED_S:
        return True
    return waited_s >= SETTLE_S and not any(_is_reached(snapshot, region, now) for region in silent)


def _is_reached(snapshot: Snapshot, region: str, now: float) -> bool:
    votes = _peer_votes(snapshot, region, now)
    return sum(votes.values()) * 2 > len(votes)


class FadedPool(msgspec.Struct, frozen=True):
    """A region's pool for one model as its most trusted report has it, and how much that still counts."""

    report: PoolReport
    counts: float
    """0-1; by the report's age."""


def pools(snapshot: Snapshot, now: float) -> dict[tuple[str, str], FadedPool]:
    """Every pool that some report still tells of, by (region, model).

    Every agent of a region sees the same endpoints, so the one that sees the most, faded by its age, is believed: an
    agent that has just started and has probed nothing yet does not make a region's capacity vanish.
    """
    best: dict[tuple[str, str], FadedPool] = {}
    listened = _listened_until(snapshot, now)
    for (region, _), held in snapshot.agents.items():
        counts = freshness(listened - held.received_at)
        if counts <= 0.0:
            continue
        for report in held.report.pools:
            one = FadedPool(report, counts)
            before = best.get((region, report.model))
            if before is None or _believed_first(one) > _believed_first(before):
                best[region, report.model] = one
    return best


def pool(snapshot: Snapshot, region: str, model: str, now: float) -> FadedPool | None:
    """A region's pool for one model, as `pools` has it; None where no report tells of it any more."""
    return pools(Snapshot({(region, held.report.agent): held for held in snapshot.of(region)}), now).get(
        (region, model)
    )


def _believed_first(one: FadedPool) -> tuple[float, float]:
    return one.report.slots * one.counts, one.counts


def heard(snapshot: Snapshot, now: float) -> frozenset[str]:
    """The regions of which some report still counts."""
    listened = _listened_until(snapshot, now)
    return frozenset(
        region for (region, _), held in snapshot.agents.items() if freshness(listened - held.received_at) > 0.0
    )


class Demand(msgspec.Struct, frozen=True, gc=False):
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
    listened = _listened_until(snapshot, now)
    for (region, _), held in snapshot.agents.items():
        weight = freshness(listened - held.received_at)
        if weight <= 0.0:
            continue
        for one in held.report.demand:
            key = (region, one.model, one.residency)
            total[key] = total.get(key, 0.0) + weight * one.requests_per_s
            if one.residency not in members:
                members[one.residency] = frozenset(one.regions)
    return [
        Demand(origin, model, residency, members[residency], rate)
        for (origin, model, residency), rate in sorted(total.items())
    ]


def _listened_until(snapshot: Snapshot, now: float) -> float:
    """The time (s) at which ages are taken: not long after the newest report, if several regions are known at all.

    When nobody is heard any more, that says more of who listens than of all others, and news do not age by it.
    """
    if len({region for region, _ in snapshot.agents}) < 2:
        return now
    return min(now, max(held.received_at for held in snapshot.agents.values()) + DEAF_S)


def _aged_while_heard(snapshot: Snapshot, now: float) -> dict[tuple[str, str], Held]:
    """Reports, younger by the time in which nobody was heard, so that the first after it does not make others old."""
    deaf_s = now - _listened_until(snapshot, now)
    if deaf_s <= 0.0:
        return snapshot.agents
    return {
        key: Held(held.report, held.received_at + deaf_s, held.endpoints_at + deaf_s)
        for key, held in snapshot.agents.items()
    }


def _held(report: AgentReport, before: Held | None, now: float) -> Held:
    """A report of now, with the endpoints of the one before where it tells of none."""
    if report.endpoints is not None or before is None or before.report.epoch != report.epoch:
        return Held(report, now, now)
    last = before.report
    whole = msgspec.structs.replace(report, endpoints=last.endpoints, endpoints_left_out=last.endpoints_left_out)
    return Held(whole, now, before.endpoints_at)


def _seems_good(snapshot: Snapshot, region: str, now: float) -> bool | None:
    """What most other regions see of it; where they are split or see nothing, its own word. None: nobody ever spoke."""
    votes = _peer_votes(snapshot, region, now)
    seen_by = sum(votes.values())
    if seen_by * 2 != len(votes):
        return seen_by * 2 > len(votes)
    own = snapshot.of(region)
    if not votes and not own:
        return None
    return any(now - held.received_at <= FRESH_S and any(pool.ready > 0 for pool in held.report.pools) for held in own)


def _ready_share(snapshot: Snapshot, region: str, now: float) -> float | None:
    """The part (0-1) of its endpoints that is ready, of the model that has the least; None without news of them.

    Of several agents the one that can use the most is believed: what one alone cannot reach, the region still has.
    """
    seen = (
        [pool.ready / pool.endpoints for pool in held.report.pools if pool.endpoints > 0]
        for held in snapshot.of(region)
        if now - held.received_at <= FRESH_S
    )
    return max((min(shares) for shares in seen if shares), default=None)


def _peer_votes(snapshot: Snapshot, region: str, now: float) -> dict[str, bool]:
    """By observing region, whether any of its agents reaches `region`: one vote each, however many agents it has."""
    votes: dict[str, bool] = {}
    for (observer, _), held in snapshot.agents.items():
        if observer == region or now - held.received_at > FRESH_S:
            continue
        for peer in held.report.peers:
            if peer.region == region and peer.state is not RegionState.UNKNOWN:
                votes[observer] = votes.get(observer, False) or peer.state is not RegionState.FAILED
    return votes


def _possible(report: AgentReport) -> bool:
    endpoints = report.endpoints or ()
    counts = [
        count
        for pool in report.pools
        for count in (pool.endpoints, pool.ready, pool.slots, pool.in_flight, pool.completions)
    ]
    rates = [
        *(pool.service_s for pool in report.pools),
        *(one.requests_per_s for one in report.demand),
        *(peer.rtt_ms for peer in report.peers),
    ]
    return (
        len(report.agent) <= MAX_NAME
        and report.epoch >= 0
        and report.seq >= 0
        # The epoch of all plans is raised above what an agent obeys, and never lowered.
        and 0 <= report.plan_epoch <= MAX_PLAN_NUMBER
        and 0 <= report.plan_generation <= MAX_PLAN_NUMBER
        and all(0 <= n <= MAX_COUNT for n in counts)
        and all(isfinite(rate) and 0.0 <= rate <= MAX_COUNT for rate in rates)
        and report.answers.are_possible
        and all(one.is_possible for one in report.objectives)
        and len(endpoints) <= MAX_ENDPOINTS
        and 0 <= report.endpoints_left_out <= MAX_COUNT
        and all(one.is_possible(MAX_COUNT) for one in endpoints)
        and all(pool.ready <= pool.endpoints for pool in report.pools)
        and all(one.residency == residency_class(frozenset(one.regions)).name for one in report.demand)
    )
