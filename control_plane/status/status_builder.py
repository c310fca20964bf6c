"""Builds the parts of a status from the policy source, the snapshot and the published plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from adapters.store.members import AgentMember
from control_plane.policy.source.policy_source import PolicySource
from control_plane.status.objective_status import objective_statuses
from control_plane.status.status import (
    MAX_UNREADY,
    AgentStatus,
    ArcStatus,
    CountryStatus,
    DemandStatus,
    PlanStatus,
    PolicyStatus,
    PoolStatus,
    RegionStatus,
    SpilloverStatus,
    UnreadyEndpoint,
)
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.fleet.report import AgentReport
from penstock.fleet.reported_endpoints import endpoints
from penstock.fleet.snapshot import FadedPool, HeldReport, Snapshot, demand, freshness, pools
from penstock.fleet.traffic_view import countries, jobs, spillover, tenants
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.kinds.regions import Region
from penstock.policy.policy import Policy
from penstock.policy.service_objective import ObjectiveReport

_OF_REPORT = frozenset(AgentStatus.__struct_fields__) & frozenset(AgentReport.__struct_fields__) - {"region"}
"""The fields of an agent's status that its report has."""


def policy_status(policies: PolicySource) -> PolicyStatus:
    """Return the policy in force, and the errors of its source."""
    digest = policies.current.digest() if policies.current is not None else None
    return PolicyStatus(
        digest,
        policies.origin,
        policies.errors,
        policies.provenance,
        policies.refused_provenance,
        policies.unreadable,
    )


def plan_status(plans: Mapping[str, RegionPlan], now: float) -> PlanStatus | None:
    """Return the status of the plan, by its newest slice; None where there is no plan."""
    newest = max(plans.values(), key=lambda plan: (plan.epoch, plan.generation), default=None)
    if newest is None:
        return None
    age_s = max(0.0, now - max(plan.made_at for plan in plans.values()))
    return PlanStatus(newest.generation, newest.epoch, newest.policy_digest, age_s, newest.provenance)


def region_statuses(policy: Policy | None, snapshot: Snapshot, now: float) -> tuple[RegionStatus, ...]:
    """Return every region of the policy."""
    if policy is None:
        return ()
    by_origin: dict[str, list[DemandStatus]] = {}
    for row in demand(snapshot, now):
        by_origin.setdefault(row.origin, []).append(DemandStatus(row.model, row.residency, row.requests_per_s))
    by_region: dict[str, list[FadedPool]] = {}
    for (region, model), seen in sorted(pools(snapshot, now).items()):
        if model in policy.models:
            by_region.setdefault(region, []).append(seen)
    objectives: dict[str, list[ObjectiveReport]] = {}
    parts: dict[str, dict[tuple[str, str], HeldReport]] = {}
    for (region, agent), held in snapshot.agents.items():
        parts.setdefault(region, {})[region, agent] = held
        if freshness(now - held.received_at) > 0.0:
            objectives.setdefault(region, []).extend(held.report.objectives)
    return tuple(
        _region_status(
            region,
            Snapshot(parts.get(name, {}), snapshot.health),
            by_region.get(name, ()),
            tuple(by_origin.get(name, ())),
            objectives.get(name, ()),
            now,
        )
        for name, region in sorted(policy.regions.items())
    )


def agent_statuses(registered: Mapping[str, AgentMember], snapshot: Snapshot, now: float) -> tuple[AgentStatus, ...]:
    """Return every agent that is registered or has reported."""
    members = {(member.region, member.name): member for member in registered.values()}
    return tuple(
        _agent_status(agent, members.get(agent), snapshot.agents.get(agent), now)
        for agent in sorted(members.keys() | snapshot.agents.keys())
    )


def arc_statuses(plans: Mapping[str, RegionPlan]) -> tuple[ArcStatus, ...]:
    """Return the arcs of the plan in the store."""
    return tuple(
        ArcStatus(origin, arc.server, entry.model, entry.residency, arc.share, arc.why)
        for origin, plan in sorted(plans.items())
        for entry in plan.classes
        for arc in entry.arcs
    )


def _region_status(
    region: Region,
    snapshot: Snapshot,
    reports: Iterable[FadedPool],
    offered: tuple[DemandStatus, ...],
    objectives: Iterable[ObjectiveReport],
    now: float,
) -> RegionStatus:
    """Return the status of one region.

    Args:
        snapshot: contains only the reports of this region's agents, so that all regions together read each report
            once.
    """
    newest = snapshot.newest(region.name)
    health = snapshot.health.get(region.name, RegionHealth())
    unready = _unready(snapshot, region.name, now)
    return RegionStatus(
        name=region.name,
        city=region.city,
        country=region.country,
        latitude_deg=region.latitude_deg,
        longitude_deg=region.longitude_deg,
        state=health.state,
        state_age_s=now - health.since if health.state is not RegionState.UNKNOWN else None,
        report_age_s=now - newest.received_at if newest is not None else None,
        pools=tuple(map(_pool_status, reports)),
        demand=offered,
        objectives=objective_statuses(objectives),
        spillover=tuple(
            SpilloverStatus(row.model, row.waiting, row.headroom, row.granted, row.held)
            for row in spillover(snapshot, region.name, now)
        ),
        countries=tuple(
            CountryStatus(row.country, row.requests_per_s) for row in countries(snapshot, region.name, now)
        ),
        tenants=tenants(snapshot, region.name, now),
        jobs=jobs(snapshot, region.name, now),
        unready=unready[:MAX_UNREADY],
        unready_count=len(unready),
    )


def _unready(snapshot: Snapshot, region: str, now: float) -> tuple[UnreadyEndpoint, ...]:
    return tuple(
        UnreadyEndpoint(found.report.name, found.report.condition, found.report.reason)
        for found in sorted(endpoints(snapshot, now, region), key=lambda found: found.report.name)
        if found.report.condition not in (EndpointCondition.READY, EndpointCondition.WARMING)
    )


def _pool_status(seen: FadedPool) -> PoolStatus:
    pool, others = seen.report, {model for group in seen.groups for model in group.models} - {seen.report.model}
    return PoolStatus(
        pool.model, pool.endpoints, pool.ready, pool.slots, pool.in_flight, pool.service_s, tuple(sorted(others))
    )


def _agent_status(
    agent: tuple[str, str], member: AgentMember | None, held: HeldReport | None, now: float
) -> AgentStatus:
    region, name = agent
    status = AgentStatus(
        region=region,
        name=name,
        registered=member is not None,
        peer_url=member.peer_url if member is not None else None,
        admin_url=member.admin_url if member is not None else None,
        report_age_s=now - held.received_at if held is not None else None,
    )
    if held is None:
        return status
    of_report = {field: getattr(held.report, field) for field in _OF_REPORT}
    ahead_s = held.report.sent_at - held.received_at if held.report.sent_at else 0.0
    return msgspec.structs.replace(status, **of_report, clock_ahead_s=ahead_s)
