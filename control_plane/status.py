"""What a control plane tells operators: who leads, what it knows of the fleet and since when, and the plan in force."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from control_plane.client.members import AgentMember, Member
from control_plane.overrides.shown import OverrideStatus
from control_plane.policy_source import Origin, PolicySource
from control_plane.rollout.shown import RolloutSummary
from penstock.plan import ArcReason, RegionPlan
from penstock.planner.shortfall import Shortfall
from penstock.policy import Policy, Region
from penstock.provenance import Provenance
from penstock.region_health import RegionHealth, RegionState
from penstock.report import PoolReport
from penstock.snapshot import Held, Snapshot, demand, pools

MOST_SHORTFALLS = 100
"""Of what capacity is missing, so much is told: each model and region may lack some at the loss of every other."""


class LeaderStatus(msgspec.Struct, frozen=True):
    """Who holds the leader key."""

    name: str
    url: str
    epoch: int


class StoreStatus(msgspec.Struct, frozen=True):
    """Whether the store answers; without it nothing here changes but reports."""

    up: bool


class PolicyStatus(msgspec.Struct, frozen=True):
    """The policy that this control plane holds."""

    digest: str | None
    origin: Origin | None
    refused: tuple[str, ...]
    """What is wrong with the policy source as it is now; empty when it is accepted."""
    provenance: Provenance | None = None
    """The commit that it is from; None where it is from a folder."""
    refused_provenance: Provenance | None = None
    """The commit that is refused."""
    unreadable: str = ""
    """Why the source could not be read the last time; empty when it could."""


class PlanStatus(msgspec.Struct, frozen=True):
    """The plan in the store, over all regions."""

    generation: int
    epoch: int
    policy_digest: str
    age_s: float
    """Since its newest slice was made."""
    provenance: Provenance | None = None
    """The commit that its policy is from."""


class PoolStatus(msgspec.Struct, frozen=True):
    """One region's endpoints for one model."""

    model: str
    endpoints: int
    ready: int
    slots: int
    in_flight: int
    service_s: float


class DemandStatus(msgspec.Struct, frozen=True):
    """What clients ask one region for, in one traffic class."""

    model: str
    residency: str
    requests_per_s: float


class PeerStatus(msgspec.Struct, frozen=True):
    """What one agent sees of another region."""

    region: str
    state: RegionState
    rtt_ms: float


class AgentStatus(msgspec.Struct, frozen=True):
    """One agent, registered or heard of or both."""

    region: str
    name: str
    registered: bool
    peer_url: str | None
    admin_url: str | None
    report_age_s: float | None
    """None before its first report."""
    policy_digest: str = ""
    plan_epoch: int = 0
    plan_generation: int = 0
    refused_plan: str = ""
    refused_digest: str = ""
    """The policy that what it refused names."""
    peers: tuple[PeerStatus, ...] = ()


class RegionStatus(msgspec.Struct, frozen=True):
    """One region as this control plane sees it."""

    name: str
    city: str
    country: str
    latitude_deg: float
    longitude_deg: float
    state: RegionState
    state_age_s: float | None
    """None while it is unknown."""
    report_age_s: float | None
    """Of its newest report; None before the first."""
    pools: tuple[PoolStatus, ...]
    demand: tuple[DemandStatus, ...]


class ArcStatus(msgspec.Struct, frozen=True):
    """Who serves whom: a share of an origin's demand in one traffic class."""

    origin: str
    server: str
    model: str
    residency: str
    share: float
    why: ArcReason


class Status(msgspec.Struct, frozen=True):
    """Everything; ages are in seconds at `at`."""

    at: float
    """Unix time (s)."""
    name: str
    url: str
    leading: bool
    role: str
    role_age_s: float
    why: str
    """What made the role so."""
    epoch: int
    """The fencing epoch under which this control plane leads; 0 while it does not."""
    leader: LeaderStatus | None
    store: StoreStatus
    policy: PolicyStatus
    plan: PlanStatus | None
    regions: tuple[RegionStatus, ...]
    agents: tuple[AgentStatus, ...]
    control_planes: tuple[Member, ...]
    arcs: tuple[ArcStatus, ...]
    overrides: tuple[OverrideStatus, ...] = ()
    """What operators and the policy's maintenance windows want meanwhile, and what is on its way back."""
    rollout: RolloutSummary | None = None
    """The newest rollout of a policy: under way, or the last one."""
    shortfalls: tuple[Shortfall, ...] = ()
    """What capacity is missing where, what is missing already first, and of that the first MOST_SHORTFALLS."""
    fleet_seen_by: str = ""
    """Name of the control plane whose view of `regions`, `agents` and `shortfalls` this is: the leader's, who hears the
    agents, or that of the one that answers where the leader cannot be asked."""
    fleet_problem: str = ""
    """Why it is not the leader's; empty where it is."""


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
    return tuple(
        _region_status(one, snapshot, by_region.get(name, ()), tuple(by_origin.get(name, ())), now)
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
    region: Region, snapshot: Snapshot, reports: Iterable[PoolReport], offered: tuple[DemandStatus, ...], now: float
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
    )


def _agent_status(seat: tuple[str, str], member: AgentMember | None, held: Held | None, now: float) -> AgentStatus:
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
