"""The fleet as last reported, the input of the planner. Every number has an age, and old reports lose weight.

Reports come from agents that may be late, restarted, faulty or hostile. `add_report` keeps the newest valid report of
each agent and returns the reason for rejecting others. A region's health is decided by the majority of the other
regions; the region's own report decides only if their votes are split or missing."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from enum import StrEnum
from math import isfinite

import msgspec

from penstock.fleet.capacity_groups import are_groups_of
from penstock.fleet.counts.version_counts import MAX_REPORTED as MAX_VERSIONS
from penstock.fleet.endpoint_report import MAX_ENDPOINTS
from penstock.fleet.report import MAX_COUNTRIES, AgentReport, GroupReport, PoolReport
from penstock.health.region_health import RegionEvent, RegionHealth, RegionState, command, observe
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class

FRESH_S = 2.0
"""Age (s) up to which a report has full weight: agents report about once a second."""

FADED_S = 15.0
"""Age (s) from which on a report has no weight."""

MAX_GAP_S = 1.0
"""Time (s) without a report of any region after which reports stop ageing: several regions do not fail at the same
moment, so the fault is taken to be in this process's reception."""

FORGET_S = 300.0
"""Time (s) without a report after which an agent is removed from the snapshot."""

SETTLE_S = 3.0
"""Time (s) that a new leader waits for the reports of all regions before it plans without the missing ones."""

MAX_AGENTS = 1_000
"""Maximum number of agents of one region; more than any region runs, and few enough to hold in memory."""

MAX_NAME = 255
"""Maximum length of an agent's name, in characters."""

MAX_PLAN_NUMBER = 2**53 - 1
"""Maximum epoch and generation of a plan: epochs are revisions of the store, and JSON represents this exactly."""

MAX_COUNT = 1_000_000_000
"""Maximum of a pool's endpoints, slots and requests in flight; a report that exceeds it is invalid. Above what the
largest permitted endpoints of one region add up to."""


class ReportVerdict(StrEnum):
    """Result of adding a report."""

    ACCEPTED = "accepted"
    OLD_EPOCH = "old_epoch"
    OLD_SEQ = "old_seq"
    UNKNOWN_REGION = "unknown_region"
    TOO_MANY_AGENTS = "too_many_agents"
    IMPOSSIBLE = "impossible"
    """Numbers or texts out of range, malformed capacity groups, or a residency class whose name does not match its
    regions."""


class HeldReport(msgspec.Struct, frozen=True):
    """The newest report of an agent and its arrival time by the control plane's clock (s)."""

    report: AgentReport
    """Includes the newest endpoint list of the agent, from this report or an earlier one."""
    received_at: float
    endpoints_at: float = 0.0
    """Arrival time (s) of the report that contained the endpoint list."""


class Snapshot(msgspec.Struct, frozen=True):
    """The state of the fleet, with the age of each part."""

    agents: dict[tuple[str, str], HeldReport] = {}
    """By (region, agent)."""
    health: dict[str, RegionHealth] = {}
    inherited: dict[str, RegionHealth] = {}
    """Health handed over by the former leader: the initial state of a region once a report about it arrives."""

    def newest(self, region: str) -> HeldReport | None:
        """Returns the newest report of a region's agents; None without reports."""
        return max(self.of(region), key=lambda held: held.received_at, default=None)

    def of(self, region: str) -> list[HeldReport]:
        """Returns the newest report of each of a region's agents."""
        return [held for (reporting_region, _), held in self.agents.items() if reporting_region == region]

    def state(self, region: str) -> RegionState:
        """Returns the region's health state at the control plane."""
        return self.health.get(region, RegionHealth()).state


def freshness(age_s: float) -> float:
    """Returns the weight (0-1) of a number of this age: 1 while fresh, then linearly down to 0."""
    return max(0.0, min(1.0, (FADED_S - age_s) / (FADED_S - FRESH_S)))


def add_report(snapshot: Snapshot, report: AgentReport, now: float, policy: Policy) -> tuple[Snapshot, ReportVerdict]:
    """Adds a report, or rejects it and returns the snapshot unchanged."""
    key = (report.region, report.agent)
    if report.region not in policy.regions:
        return snapshot, ReportVerdict.UNKNOWN_REGION
    if not _is_valid(report):
        return snapshot, ReportVerdict.IMPOSSIBLE
    before = snapshot.agents.get(key)
    if before is not None:
        if report.epoch < before.report.epoch:
            return snapshot, ReportVerdict.OLD_EPOCH
        if report.epoch == before.report.epoch and report.seq <= before.report.seq:
            return snapshot, ReportVerdict.OLD_SEQ
    elif len(snapshot.of(report.region)) >= MAX_AGENTS:
        return snapshot, ReportVerdict.TOO_MANY_AGENTS
    aged = _without_gap(snapshot, now)
    after = msgspec.structs.replace(snapshot, agents={**aged, key: _with_endpoints(report, aged.get(key), now)})
    return after, ReportVerdict.ACCEPTED


def tick(snapshot: Snapshot, now: float, policy: Policy, drained: Container[str] = ()) -> Snapshot:
    """Updates the health of every region with any report, and removes agents without a report for FORGET_S.

    A region without any report stays unknown: a new leader has not observed a failure. A region that has no ready
    endpoint yet also stays unknown, unless other regions observed its failure: the region is starting and has not
    served yet, so it has not failed. If reports of several regions stop at once, the fault is taken to be in this
    process's reception, and the agents and the health are kept.

    Args:
        drained: regions that operators drain now, which does not affect a region without any observation; a region that
            is no longer drained returns by the failback ramp.
    """
    listened = _ages_as_of(snapshot, now)
    agents = {key: held for key, held in snapshot.agents.items() if listened - held.received_at < FORGET_S}
    kept = msgspec.structs.replace(snapshot, agents=agents)
    health, peer_votes = {}, _peer_votes(kept, listened)
    for region in policy.regions:
        before, votes = snapshot.health.get(region, RegionHealth()), peer_votes.get(region, {})
        good = _seems_good(kept, region, votes, listened)
        if region not in snapshot.health and good is not None:
            before = snapshot.inherited.get(region, before)
        if good is False and before.state is RegionState.UNKNOWN and not votes:
            good = None
        if good is not None:
            health[region] = observe(before, good, now, policy.failover, _ready_share(kept, region, listened))
        elif before.state is not RegionState.UNKNOWN:
            health[region] = observe(before, False, now, policy.failover)
        if region in health and (region in drained) is not before.drained:
            event = RegionEvent.DRAIN if region in drained else RegionEvent.UNDRAIN
            health[region] = command(health[region], event, now)
    return msgspec.structs.replace(kept, health=health)


def resume(snapshot: Snapshot, now: float) -> Snapshot:
    """Returns the part of the snapshot that a new leader may use: recent reports, and no health.

    Agents report to the leader alone, so the silence that a follower observed does not indicate a failure. `inherit`
    adds the health that the former leader handed over.
    """
    return Snapshot({key: held for key, held in snapshot.agents.items() if now - held.received_at <= FRESH_S})


def inherit(snapshot: Snapshot, handed_over: Mapping[str, RegionHealth]) -> Snapshot:
    """Sets the health that the former leader handed over as the initial state of regions.

    The handed-over health replaces the present health of those regions. A region without any report stays unknown: the
    handover alone neither gives a region traffic nor counts as a missed report.

    Args:
        handed_over: health of unhealthy regions that still applies (`penstock.fleet.leader_handover`).
    """
    health = {region: state for region, state in snapshot.health.items() if region not in handed_over}
    return msgspec.structs.replace(snapshot, health=health, inherited=dict(handed_over))


def settled(snapshot: Snapshot, now: float, policy: Policy, leading_since: float) -> bool:
    """Whether a leader has enough reports to plan: all regions reported, or the wait is over.

    The wait is SETTLE_S. For a region that other regions reach, the wait is FADED_S: only its reports to this control
    plane are missing, and an established leader would not remove its traffic sooner.
    """
    silent = policy.regions.keys() - {
        region for (region, _), held in snapshot.agents.items() if now - held.received_at <= FRESH_S
    }
    waited_s = now - leading_since
    if not silent or waited_s >= FADED_S:
        return True
    if waited_s < SETTLE_S:
        return False
    votes = _peer_votes(snapshot, now)
    return not any(_is_reached(votes.get(region, {})) for region in silent)


def _is_reached(votes: Mapping[str, bool]) -> bool:
    return sum(votes.values()) * 2 > len(votes)


class FadedPool(msgspec.Struct, frozen=True):
    """A region's pool for one model from its most credible report, and that report's weight."""

    report: PoolReport
    weight: float
    """Weight (0-1) of the report by its age."""
    groups: tuple[GroupReport, ...] = ()
    """The capacity groups of several models that the pool contains, from the same agent's report."""


def pools(snapshot: Snapshot, now: float) -> dict[tuple[str, str], FadedPool]:
    """Returns every pool with a report that has weight, by (region, model).

    Every agent of a region has the same endpoints, so the report with the most slots, weighted by age, is used: an
    agent that has just started and has not probed any endpoint does not remove a region's capacity. Where models share
    slots, all pools of the region are from one report, since the groups of two reports may overlap.
    """
    best: dict[tuple[str, str], FadedPool] = {}
    listened = _ages_as_of(snapshot, now)
    whole = _reports_with_groups(snapshot, listened)
    for (region, _), held in snapshot.agents.items():
        weight = freshness(listened - held.received_at)
        if weight <= 0.0 or whole.get(region, held) is not held:
            continue
        for report in held.report.pools:
            candidate = FadedPool(report, weight)
            before = best.get((region, report.model))
            if before is None or _preference(candidate) > _preference(before):
                best[region, report.model] = candidate
    for region, held in whole.items():
        for report in held.report.pools:
            groups = tuple(group for group in held.report.groups if report.model in group.models)
            if groups:
                best[region, report.model] = msgspec.structs.replace(best[region, report.model], groups=groups)
    return best


def _reports_with_groups(snapshot: Snapshot, now: float) -> dict[str, HeldReport]:
    """Returns the report with the most slots, weighted by age, by region where some agent reports capacity groups."""
    regions = {region for (region, _), held in snapshot.agents.items() if held.report.groups}
    best: dict[str, tuple[float, float, HeldReport]] = {}
    for (region, _), held in snapshot.agents.items():
        weight = freshness(now - held.received_at)
        if region in regions and weight > 0.0:
            candidate = (_distinct_slots(held.report) * weight, weight, held)
            if region not in best or candidate[:2] > best[region][:2]:
                best[region] = candidate
    return {region: held for region, (_, _, held) in best.items()}


def _distinct_slots(report: AgentReport) -> int:
    shared = sum(group.slots * (len(group.models) - 1) for group in report.groups)
    return sum(pool.slots for pool in report.pools) - shared


def _preference(pool: FadedPool) -> tuple[float, float]:
    return pool.report.slots * pool.weight, pool.weight


def reporting_regions(snapshot: Snapshot, now: float) -> frozenset[str]:
    """Returns the regions with a report that has weight."""
    listened = _ages_as_of(snapshot, now)
    return frozenset(
        region for (region, _), held in snapshot.agents.items() if freshness(listened - held.received_at) > 0.0
    )


class Demand(msgspec.Struct, frozen=True, gc=False):
    """Demand of one origin in one traffic class, summed over its agents."""

    origin: str
    model: str
    residency: str
    regions: frozenset[str]
    requests_per_s: float
    by_priority: tuple[tuple[int, float], ...] = ()
    """The measured requests/s of each priority; empty if unknown."""


def demand(snapshot: Snapshot, now: float, *, with_batch: bool = False) -> list[Demand]:
    """Returns offered demand by origin and traffic class, weighted by the age of the reports.

    Args:
        with_batch: include batch requests, which need capacity, but which no plan places.
    """
    total: dict[tuple[str, str, str], float] = {}
    priorities: dict[tuple[str, str, str], dict[int, float]] = {}
    members: dict[str, frozenset[str]] = {}
    listened = _ages_as_of(snapshot, now)
    for (region, _), held in snapshot.agents.items():
        weight = freshness(listened - held.received_at)
        if weight <= 0.0:
            continue
        for row in held.report.demand:
            key = (region, row.model, row.residency)
            per_s = row.requests_per_s + row.batch_per_s if with_batch else row.requests_per_s
            if not per_s and row.batch_per_s:
                continue
            total[key] = total.get(key, 0.0) + weight * per_s
            rates = priorities.setdefault(key, {})
            rates[row.priority] = rates.get(row.priority, 0.0) + weight * row.requests_per_s
            if row.residency not in members:
                members[row.residency] = frozenset(row.regions)
    return [
        Demand(*key, members[key[2]], rate, tuple(sorted(priorities[key].items())))
        for key, rate in sorted(total.items())
    ]


def _ages_as_of(snapshot: Snapshot, now: float) -> float:
    """Returns the time (s) at which ages are taken: at most MAX_GAP_S after the newest report, if several regions
    reported.

    If reports of all regions stop, the fault is taken to be in this process's reception, and reports do not age.
    """
    if len({region for region, _ in snapshot.agents}) < 2:
        return now
    return min(now, max(held.received_at for held in snapshot.agents.values()) + MAX_GAP_S)


def _without_gap(snapshot: Snapshot, now: float) -> dict[tuple[str, str], HeldReport]:
    """Returns the reports with the time of a reception gap removed, so that the first report after the gap does not age
    the others."""
    gap_s = now - _ages_as_of(snapshot, now)
    if gap_s <= 0.0:
        return snapshot.agents
    return {
        key: HeldReport(held.report, held.received_at + gap_s, held.endpoints_at + gap_s)
        for key, held in snapshot.agents.items()
    }


def _with_endpoints(report: AgentReport, before: HeldReport | None, now: float) -> HeldReport:
    """Returns a report received now, with the endpoint list of the previous report if it has none."""
    if report.endpoints is not None or before is None or before.report.epoch != report.epoch:
        return HeldReport(report, now, now)
    last = before.report
    whole = msgspec.structs.replace(report, endpoints=last.endpoints, endpoints_omitted=last.endpoints_omitted)
    return HeldReport(whole, now, before.endpoints_at)


def _seems_good(snapshot: Snapshot, region: str, votes: Mapping[str, bool], now: float) -> bool | None:
    """Whether most other regions reach a region; if their votes are split or missing, its own reports decide.

    None without votes and reports.
    """
    seen_by = sum(votes.values())
    if seen_by * 2 != len(votes):
        return seen_by * 2 > len(votes)
    own = snapshot.of(region)
    if not votes and not own:
        return None
    fresh = [held.report.pools for held in own if now - held.received_at <= FRESH_S]
    return any(any(pool.ready > 0 for pool in found) or _is_withdrawn(found) for found in fresh)


def _is_withdrawn(found: Sequence[PoolReport]) -> bool:
    """Whether no endpoint of any pool should be ready: all sleep until requests need them, or operators drain them."""
    return bool(found) and all(pool.endpoints == 0 for pool in found)


def _ready_share(snapshot: Snapshot, region: str, now: float) -> float | None:
    """Returns the share (0-1) of ready endpoints, of the model with the lowest share; None without reports.

    Of several agents, the agent with the highest share counts: an endpoint that one agent cannot reach is still
    available.
    """
    seen = (
        [pool.ready / pool.endpoints for pool in held.report.pools if pool.endpoints > 0]
        for held in snapshot.of(region)
        if now - held.received_at <= FRESH_S
    )
    return max((min(shares) for shares in seen if shares), default=None)


def _peer_votes(snapshot: Snapshot, now: float) -> dict[str, dict[str, bool]]:
    """Returns, by observed and observing region, whether any agent of the latter reaches the former: one vote each."""
    votes: dict[str, dict[str, bool]] = {}
    for (observer, _), held in snapshot.agents.items():
        if now - held.received_at > FRESH_S:
            continue
        for peer in held.report.peers:
            if peer.region != observer and peer.state is not RegionState.UNKNOWN:
                of_region = votes.setdefault(peer.region, {})
                of_region[observer] = of_region.get(observer, False) or peer.state is not RegionState.FAILED
    return votes


def _is_valid(report: AgentReport) -> bool:
    endpoints = report.endpoints or ()
    counts = [
        count
        for pool in report.pools
        for count in (pool.endpoints, pool.ready, pool.slots, pool.in_flight, pool.completions, pool.burst_slots)
    ]
    counts += [
        count for group in report.groups for count in (group.endpoints, group.ready, group.slots, group.in_flight)
    ]
    rates = [
        *(pool.service_s for pool in report.pools),
        *(row.requests_per_s for row in report.demand),
        *(row.batch_per_s for row in report.demand),
        *(peer.rtt_ms for peer in report.peers),
        *(row.requests_per_s for row in report.countries),
    ]
    return (
        len(report.agent) <= MAX_NAME
        and report.epoch >= 0
        and report.seq >= 0
        # The plan epoch may be raised above the epoch an agent reports, and is never lowered.
        and 0 <= report.plan_epoch <= MAX_PLAN_NUMBER
        and 0 <= report.plan_generation <= MAX_PLAN_NUMBER
        and all(0 <= n <= MAX_COUNT for n in counts)
        and all(isfinite(rate) and 0.0 <= rate <= MAX_COUNT for rate in rates)
        and report.request_counts.are_valid
        and len(report.versions) <= MAX_VERSIONS
        and all(version.counts.are_valid for version in report.versions)
        and all(sizes.is_possible for sizes in report.message_bytes)
        and all(objective.is_possible for objective in report.objectives)
        and len(endpoints) <= MAX_ENDPOINTS
        and 0 <= report.endpoints_omitted <= MAX_COUNT
        and all(endpoint.is_possible(MAX_COUNT) for endpoint in endpoints)
        and all(pool.ready <= pool.endpoints for pool in report.pools)
        and len(report.countries) <= MAX_COUNTRIES
        and all(row.is_possible for row in report.countries)
        and all(row.is_possible(MAX_COUNT) for row in report.spillover)
        and len(report.release) <= MAX_NAME
        and isfinite(report.certificate_expires_at)
        and report.has_possible_texts
        and are_groups_of(report.groups, report.pools)
        and all(row.residency == residency_class(frozenset(row.regions)).name for row in report.demand)
    )
