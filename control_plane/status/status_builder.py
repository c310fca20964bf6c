"""The fleet surveyed: what a control plane knows, put into the parts of its status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from adapters.store.members import AgentMember
from control_plane.policy.source.policy_source import PolicySource
from control_plane.status.objective_status import objective_statuses
from control_plane.status.status import (
    AgentStatus,
    ArcStatus,
    DemandStatus,
    PeerStatus,
    PlanStatus,
    PolicyStatus,
    PoolStatus,
    RegionStatus,
)
from penstock.fleet.report import PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot, demand, freshness, pools
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy, Region
from penstock.policy.service_objective import ObjectiveReport


def policy_status(policies: PolicySource) -> PolicyStatus:
    """The policy in force here, and what is wrong with its source."""
    digest = policies.current.digest() if policies.current is not None else None
    return PolicyStatus(
        digest,
        policies.origin,
        policies.refused,
        policies.provenance,
        policies.refused_provenance,
        policies.unreadable,
    )


def plan_status(plans: Mapping[str, RegionPlan], now: float) -> PlanStatus | None:
    """The newest slice stands for the whole plan."""
    newest = max(plans.values(), key=lambda plan: (plan.epoch, plan.generation), default=None)
    if newest is None:
        return None
    age_s = max(0.0, now - max(plan.made_at for plan in plans.values()))
    return PlanStatus(newest.generation, newest.epoch, newest.policy_digest, age_s, newest.provenance)


def region_statuses(policy: Policy | None, snapshot: Snapshot, now: float) -> tuple[RegionStatus, ...]:
    """Every region of the policy."""
    if policy is None:
        return ()
    by_origin: dict[str, list[DemandStatus]] = {}
    for one in demand(snapshot, now):
        by_origin.setdefault(one.origin, []).append(DemandStatus(one.model, one.residency, one.requests_per_s))
    by_region: dict[str, list[PoolReport]] = {}
    for (region, model), seen in sorted(pools(snapshot, now).items()):
        if model in policy.models:
            by_region.setdefault(region, []).append(seen.report)
    kept: dict[str, list[ObjectiveReport]] = {}
    for (region, _), held in snapshot.agents.items():
        if freshness(now - held.received_at) > 0.0:
            kept.setdefault(region, []).extend(held.report.objectives)
    return tuple(
        _region_status(one, snapshot, by_region.get(name, ()), tuple(by_origin.get(name, ())), kept.get(name, ()), now)
        for name, one in sorted(policy.regions.items())
    )


def agent_statuses(registered: Mapping[str, AgentMember], snapshot: Snapshot, now: float) -> tuple[AgentStatus, ...]:
    """Every agent that is registered or was heard of."""
    members = {(member.region, member.name): member for member in registered.values()}
    return tuple(
        _agent_status(seat, members.get(seat), snapshot.agents.get(seat), now)
        for seat in sorted(members.keys() | snapshot.agents.keys())
    )


def arc_statuses(plans: Mapping[str, RegionPlan]) -> tuple[ArcStatus, ...]:
    """Who serves whom by the plan in the store."""
    return tuple(
        ArcStatus(origin, arc.server, entry.model, entry.residency, arc.share, arc.why)
        for origin, plan in sorted(plans.items())
        for entry in plan.classes
        for arc in entry.arcs
    )


def _region_status(
    region: Region,
    snapshot: Snapshot,
    reports: Iterable[PoolReport],
    offered: tuple[DemandStatus, ...],
    kept: Iterable[ObjectiveReport],
    now: float,
) -> RegionStatus:
    newest = snapshot.newest(region.name)
    health = snapshot.health.get(region.name, RegionHealth())
    return RegionStatus(
        name=region.name,
        city=region.city,
        country=region.country,
        latitude_deg=region.latitude_deg,
        longitude_deg=region.longitude_deg,
        state=health.state,
        state_age_s=now - health.since if health.state is not RegionState.UNKNOWN else None,
        report_age_s=now - newest.received_at if newest is not None else None,
        pools=tuple(
            PoolStatus(one.model, one.endpoints, one.ready, one.slots, one.in_flight, one.service_s) for one in reports
        ),
        demand=offered,
        objectives=objective_statuses(kept),
    )


def _agent_status(
    seat: tuple[str, str], member: AgentMember | None, held: HeldReport | None, now: float
) -> AgentStatus:
    region, name = seat
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
    return msgspec.structs.replace(
        status,
        policy_digest=held.report.policy_digest,
        plan_epoch=held.report.plan_epoch,
        plan_generation=held.report.plan_generation,
        refused_plan=held.report.refused_plan,
        refused_digest=held.report.refused_digest,
        peers=tuple(PeerStatus(one.region, one.state, one.rtt_ms) for one in held.report.peers),
    )
