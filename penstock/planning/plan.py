"""The traffic plan: for each origin and traffic class, the regions that serve it and their shares."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

import msgspec

from penstock.health.region_health import RegionHealth
from penstock.policy.model_versions import rollout_of
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance

NONE_CLOSED: Mapping[str, bool] = MappingProxyType({})


class ArcReason(StrEnum):
    """The reason for an arc."""

    HOME = "home"
    """The server is the nearest permitted region that has the model."""
    SPILLOVER = "spillover"
    """Home is healthy, but filled to its target, or another region is better for this part; the detail states the
    reason."""
    FAILOVER = "failover"
    """Home has failed or is draining."""
    FAILBACK = "failback"
    """Home is on its failback ramp."""
    BATCH = "batch"
    """A batch request uses idle slots of a cheaper region, or home has none. No arc of a plan has this reason."""


class Arc(msgspec.Struct, frozen=True, gc=False):
    """The share of one origin's demand for one traffic class that one region serves."""

    server: str
    share: float
    """Share (0-1) of the class's demand; the shares of a class sum to 1."""
    why: ArcReason
    detail: str = ""
    """Details of the reason; the text does not change while the reason is the same."""


class FailoverTable(msgspec.Struct, frozen=True, gc=False):
    """The regions that take over a lost region's share of a class; the tables of all origins are computed together."""

    lost: str
    arcs: tuple[Arc, ...]
    """Parts (0-1) of the lost region's share, which sum to 1."""


class ClassPlan(msgspec.Struct, frozen=True, gc=False):
    """The plan of one traffic class (model, residency class) at one origin."""

    model: str
    residency: str
    """Name of the residency class."""
    arcs: tuple[Arc, ...]
    fallbacks: tuple[str, ...]
    """Other permitted regions that serve the model, best first; used if no region of an arc can serve."""
    failover_tables: tuple[FailoverTable, ...] = ()
    """Failover tables for regions of the arcs; a table applies at once if its region is lost. Without a table, the
    share goes to the other arcs and the nearest region."""


class Closed(msgspec.Struct, frozen=True, gc=False):
    """A region that an override closes to an origin's new traffic for one model, except for its arcs."""

    region: str
    model: str
    last_resort: bool
    """Whether the region still serves demand that no other permitted region can serve."""


class DrainedEndpoint(msgspec.Struct, frozen=True, gc=False):
    """An endpoint of the origin that an operator drains."""

    name: str
    because: str
    """The override and its reason, for operators."""


class VersionShare(msgspec.Struct, frozen=True, gc=False):
    """The share of the new version of a model in a rollout."""

    name: str
    """Name that clients request."""
    to: str
    """The new version."""
    percent: float
    """Share (0-100) of the requests for the name."""
    shadow_percent: float = 0.0
    """Share (0-100) of the old version's requests that the new version receives as copies."""
    next_percent: float = 0.0
    """Share (0-100) at the next step, for which endpoints that sleep wake before; 0 without one."""


class RegionPlan(msgspec.Struct, frozen=True, dict=True):
    """One origin's slice of a plan, published at that region's key for its agents."""

    region: str
    generation: int
    """Increases by one with every published plan."""
    epoch: int
    """The leader's fencing epoch; agents reject a plan with a lower epoch than that of the plan in force."""
    policy_digest: str
    made_at: float
    """Unix time (s) by the leader's clock; shown to operators, not used for ordering."""
    classes: tuple[ClassPlan, ...]
    ramp: float = 1.0
    """The part (0-1) of a class without an entry that the region may serve itself: below 1 on its failback ramp, 0
    while it is failed or draining."""
    provenance: Provenance | None = None
    """The commit of the policy; None for a policy from a folder."""
    closed: tuple[Closed, ...] = ()
    """Regions that receive traffic only by arcs: not as the nearest region, and not on a spill credit."""
    drained_endpoints: tuple[DrainedEndpoint, ...] = ()
    """Endpoints of the region that receive no new requests."""
    health: RegionHealth | None = None
    """The region's health state for the next leader to continue from; None for a state that is not handed over:
    unknown, healthy or suspect."""
    version_shares: tuple[VersionShare, ...] = ()
    """Shares of the rollouts of versions. Names without an entry have the percentages of the policy."""

    def lookup(self, model: str, residency: str) -> ClassPlan | None:
        """The plan of a traffic class, or None if it has no entry."""
        return self._by_class.get((model, residency))

    @cached_property
    def _by_class(self) -> dict[tuple[str, str], ClassPlan]:
        # Cached, since agents look up a class for every request that may leave. Of two entries, the first applies.
        return {(entry.model, entry.residency): entry for entry in reversed(self.classes)}

    def version_share(self, policy: Policy, name: str) -> VersionShare | None:
        """The share of the new version of a requested name, if the policy has the rollout that the share is of."""
        share = self._shares_by_name.get(name)
        if share is None:
            return None
        rollout = rollout_of(policy, name)
        return share if rollout is not None and rollout.to == share.to else None

    @cached_property
    def _shares_by_name(self) -> dict[str, VersionShare]:
        return {share.name: share for share in self.version_shares}

    def closed_for(self, model: str) -> Mapping[str, bool]:
        """By region closed to a model's new traffic: whether it is a last resort."""
        return (
            {closed.region: closed.last_resort for closed in self.closed if closed.model == model}
            if self.closed
            else NONE_CLOSED
        )

    def supersedes(self, other: RegionPlan | None) -> bool:
        """Whether this plan may replace `other`: its epoch is higher, or equal with a higher generation."""
        return other is None or (self.epoch, self.generation) > (other.epoch, other.generation)
