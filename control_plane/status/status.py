"""What a control plane tells operators: who leads, what it knows of the fleet and since when, and the plan in force."""

from __future__ import annotations

import msgspec

from adapters.store.members import Member
from control_plane.overrides.override_resource import OverrideStatus
from control_plane.policy.source.revision import Origin
from control_plane.rollout.rollout_resource import RolloutSummary
from control_plane.status.objective_status import ObjectiveStatus
from penstock.fleet.capacity import Shortfall
from penstock.health.region_health import RegionState
from penstock.planning.plan import ArcReason
from penstock.policy.provenance import Provenance

MAX_SHORTFALLS = 100
"""Of what capacity is missing, so much is told: each model and region may lack some at the loss of every other."""


class SeenBy(msgspec.Struct, frozen=True):
    """Whose view this is."""

    name: str
    """The control plane that agents report to."""
    leading: bool
    """Whether it leads. With the store away it is one that led last, where agents still report."""
    leader: str | None
    """Base URL of the leader, where known."""


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
    objectives: tuple[ObjectiveStatus, ...] = ()
    """Of the models that have one, as the region's agents tell; one for each if they go by different policies."""


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
    """What capacity is missing where, what is missing already first, and of that the first MAX_SHORTFALLS."""
    fleet_seen_by: str = ""
    """Name of the control plane whose view of `regions`, `agents` and `shortfalls` this is: the leader's, who hears the
    agents, or that of the one that answers where the leader cannot be asked."""
    fleet_problem: str = ""
    """Why it is not the leader's; empty where it is."""
