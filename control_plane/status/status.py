"""The status of a control plane: leadership, the fleet's state with its age, and the plan in force."""

from __future__ import annotations

import msgspec

from adapters.store.members import Member
from control_plane.overrides.override_resource import OverrideStatus
from control_plane.policy.source.revision import Origin
from control_plane.rollout.rollout_resource import RolloutSummary
from control_plane.status.objective_status import ObjectiveStatus
from penstock.fleet.capacity import Shortfall
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.fleet.jobs_report import JobsReport
from penstock.fleet.report import PeerReport, TenantReport
from penstock.health.region_health import RegionState
from penstock.planning.plan import ArcReason
from penstock.policy.provenance import Provenance
from penstock.rollout.rollout_progress import RolloutOutlook
from penstock.scaling.standby import Takeover

MAX_SHORTFALLS = 100
"""Maximum number of shortfalls in a status; each model, region and lost region may have one."""


MAX_UNREADY = 10
"""Maximum number of unready endpoints that the status of a region names."""


class SeenBy(msgspec.Struct, frozen=True):
    """The control plane whose snapshot was used."""

    name: str
    """Name of the control plane."""
    leading: bool
    """Whether that control plane leads. False during a store outage, when agents still report to the last leader."""
    leader: str | None
    """Base URL of the leader; null if unknown."""


class LeaderStatus(msgspec.Struct, frozen=True):
    """The control plane that holds the leader key."""

    name: str
    url: str
    epoch: int


class StoreStatus(msgspec.Struct, frozen=True):
    """Whether the store responds; while it does not, only values from agents' reports change."""

    up: bool


class PolicyStatus(msgspec.Struct, frozen=True):
    """The newest valid policy of the source, which may not be in force (`RolloutSummary.in_force`), and its state."""

    digest: str | None
    origin: Origin | None
    refused: tuple[str, ...]
    """Errors of the source's newest revision; empty where it is accepted."""
    provenance: Provenance | None = None
    """The policy's commit; null where it is from a folder."""
    refused_provenance: Provenance | None = None
    """The commit of the refused revision."""
    unreadable: str = ""
    """Error of the last read of the source; empty if the read succeeded."""


class PlanStatus(msgspec.Struct, frozen=True):
    """The plan in the store, over all regions."""

    generation: int
    epoch: int
    policy_digest: str
    age_s: float
    """Time (s) since the newest slice of the plan was made."""
    provenance: Provenance | None = None
    """The commit of the plan's policy."""


class PoolStatus(msgspec.Struct, frozen=True):
    """One region's endpoints for one model."""

    model: str
    endpoints: int
    ready: int
    slots: int
    in_flight: int
    service_s: float
    shares_slots_with: tuple[str, ...] = ()
    """Models that may use some of these slots as well; a sum over models counts shared slots several times."""


class DemandStatus(msgspec.Struct, frozen=True):
    """Demand that enters at one region, in one traffic class."""

    model: str
    residency: str
    requests_per_s: float


class SpilloverStatus(msgspec.Struct, frozen=True):
    """Queue and spill credits of one region for one model, over its agents."""

    model: str
    waiting: int
    """Requests in admission queues."""
    headroom: int
    """Free slots that the region grants credits for."""
    granted: int
    """Unexpired credits of this region that other regions hold."""
    held: int
    """Unexpired credits of other regions that this region holds."""


class CountryStatus(msgspec.Struct, frozen=True):
    """Demand of clients in one country."""

    country: str
    """ISO 3166-1 alpha-2; empty where the location is unknown."""
    requests_per_s: float


class UnreadyEndpoint(msgspec.Struct, frozen=True):
    """An endpoint that receives no requests."""

    name: str
    state: EndpointCondition
    reason: str


class AgentStatus(msgspec.Struct, frozen=True):
    """One agent that is registered, or has reported, or both."""

    region: str
    name: str
    registered: bool
    peer_url: str | None
    admin_url: str | None
    report_age_s: float | None
    """Age (s) of the agent's last report; null before the first report."""
    policy_digest: str = ""
    plan_epoch: int = 0
    plan_generation: int = 0
    refused_plan: str = ""
    refused_digest: str = ""
    """Digest of the policy that the refused plan names."""
    peers: tuple[PeerReport, ...] = ()
    """The other regions, by the probes of the agent."""
    release: str = ""
    """Version of the agent; empty if unknown."""
    certificate_expires_at: float = 0.0
    """Unix time (s) at which the agent's certificate expires; 0 if unknown."""
    rejected_files: tuple[str, ...] = ()
    """Problems of files that were rejected, while their last valid content stays in force."""
    clock_ahead_s: float = 0.0
    """Time (s) by which the agent's clock is ahead of that of the control plane, or behind (negative), less the time
    that its last report was on its way."""


class RegionStatus(msgspec.Struct, frozen=True):
    """State of one region, by the snapshot of one control plane."""

    name: str
    city: str
    country: str
    latitude_deg: float
    longitude_deg: float
    state: RegionState
    state_age_s: float | None
    """Time (s) since the state was entered; null while the state is unknown."""
    report_age_s: float | None
    """Age (s) of the region's newest report; null before the first report."""
    pools: tuple[PoolStatus, ...]
    demand: tuple[DemandStatus, ...]
    objectives: tuple[ObjectiveStatus, ...] = ()
    """Service objectives by the region's agents; a model has several entries while agents run different policies."""
    spillover: tuple[SpilloverStatus, ...] = ()
    countries: tuple[CountryStatus, ...] = ()
    """Demand by the country of the clients, largest first."""
    tenants: tuple[TenantReport, ...] = ()
    """Tenants with most requests now, at most 20."""
    jobs: JobsReport | None = None
    """Asynchronous requests and batches that agents of the region run; null in a region without a job store."""
    unready: tuple[UnreadyEndpoint, ...] = ()
    """Endpoints that receive no requests, at most MAX_UNREADY; GET /v1/endpoints lists all."""
    unready_count: int = 0
    """Number of endpoints that receive no requests."""


class StandbyStatus(msgspec.Struct, frozen=True):
    """What standby regions have taken over."""

    takeover: Takeover | None
    """The current takeover, or the last one; null: none since this control plane leads."""


class ArcStatus(msgspec.Struct, frozen=True):
    """A share of an origin's demand in one traffic class, and the region that serves it."""

    origin: str
    server: str
    model: str
    residency: str
    share: float
    why: ArcReason


class Status(msgspec.Struct, frozen=True):
    """The whole status; ages are in seconds at `at`."""

    at: float
    """Unix time (s) of the status."""
    name: str
    url: str
    leading: bool
    role: str
    role_age_s: float
    why: str
    """Reason of the current role."""
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
    """Overrides and maintenance windows that are in force, or whose region is still on the failback ramp."""
    rollout: RolloutSummary | None = None
    """The newest rollout, in progress or over; null before the first."""
    outlook: RolloutOutlook | None = None
    """What the rollout waits for, and the policy that waits for its own; null where the leader is unreachable."""
    shortfalls: tuple[Shortfall, ...] = ()
    """Missing capacity, present shortfalls first; at most MAX_SHORTFALLS."""
    fleet_seen_by: str = ""
    """Name of the control plane whose snapshot `regions`, `agents` and `shortfalls` are from: the leader, or the
    responding control plane where the leader is unreachable."""
    fleet_problem: str = ""
    """Reason for which the snapshot is not the leader's; empty if it is the leader's."""
    release: str = ""
    """Version of the responding control plane; empty if unknown."""

    @property
    def policy_in_force(self) -> tuple[str | None, Provenance | None]:
        """The policy of most regions and its commit; canary regions and the source of policy may have a newer one."""
        rollout = self.rollout
        if rollout is None or not rollout.in_force:
            return self.policy.digest, self.policy.provenance
        return rollout.in_force, rollout.provenance_in_force
