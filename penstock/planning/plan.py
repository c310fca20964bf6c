"""What the control plane decided: for each origin and traffic class, which regions serve it and in what shares."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

import msgspec

from penstock.health.region_health import RegionHealth
from penstock.policy.provenance import Provenance

NONE_CLOSED: Mapping[str, bool] = MappingProxyType({})


class ArcReason(StrEnum):
    """Why an arc exists."""

    HOME = "home"
    """The nearest permitted region that has the model: where this demand belongs."""
    SPILLOVER = "spillover"
    """Home is healthy, but fuller than its target, or another region serves this part better; the detail says which."""
    FAILOVER = "failover"
    """Home is failed or draining."""
    FAILBACK = "failback"
    """Home is back but still on its ramp."""


class Arc(msgspec.Struct, frozen=True, gc=False):
    """A share of one origin's demand for one traffic class that one region serves."""

    server: str
    share: float
    """0-1; the shares of a class sum to 1."""
    why: ArcReason
    detail: str = ""
    """What `why` does not say, in a few words that stay the same while the reason does."""


class FailoverTable(msgspec.Struct, frozen=True, gc=False):
    """What an origin does with a class's share of a region that is lost, worked out together for all origins."""

    lost: str
    arcs: tuple[Arc, ...]
    """Shares of that share, which sum to 1."""


class ClassPlan(msgspec.Struct, frozen=True, gc=False):
    """What an origin does with one traffic class (model, residency class)."""

    model: str
    residency: str
    """Name of the residency class."""
    arcs: tuple[Arc, ...]
    fallbacks: tuple[str, ...]
    """Other permitted regions that serve the model, best first: where demand goes when arcs are dead."""
    failover_tables: tuple[FailoverTable, ...] = ()
    """The failover table: for regions of the arcs, who takes their share at once when they are lost. An agent that does
    not know of it goes by the other arcs and the nearest region."""


class Closed(msgspec.Struct, frozen=True, gc=False):
    """A region that an operator has closed to an origin's new traffic for one model, beyond what its arcs say."""

    region: str
    model: str
    last_resort: bool
    """Whether it serves what no other permitted region can."""


class RegionPlan(msgspec.Struct, frozen=True, dict=True):
    """One origin's slice of a plan: what is published at that region's key, and what its agents obey."""

    region: str
    generation: int
    """Grows by one with every published plan."""
    epoch: int
    """The leader's fencing epoch; agents refuse a plan from an epoch below the newest they saw."""
    policy_digest: str
    made_at: float
    """Unix time (s) by the leader's clock; for people, not for ordering."""
    classes: tuple[ClassPlan, ...]
    ramp: float = 1.0
    """How much (0-1) of a class that has no entry the region may serve itself: on its way back it grows from nothing
    to whole, as the shares of the entries do."""
    provenance: Provenance | None = None
    """The commit that the policy is from; None where it is from a folder."""
    closed: tuple[Closed, ...] = ()
    """Where nothing may go that no arc says, neither as the nearest nor on a credit."""
    health: RegionHealth | None = None
    """What is not well with the region, by its leader: where whoever leads next goes on. None: nothing."""

    def lookup(self, model: str, residency: str) -> ClassPlan | None:
        """The plan of a traffic class, or None where the planner had not seen it yet."""
        return self._by_class.get((model, residency))

    @cached_property
    def _by_class(self) -> dict[tuple[str, str], ClassPlan]:
        # Asked with every request that may leave. Of a class that is there twice the first counts.
        return {(entry.model, entry.residency): entry for entry in reversed(self.classes)}

    def closed_for(self, model: str) -> Mapping[str, bool]:
        """The regions closed to a model's new traffic, and whether each is a last resort."""
        return (
            {one.region: one.last_resort for one in self.closed if one.model == model} if self.closed else NONE_CLOSED
        )

    def supersedes(self, other: RegionPlan | None) -> bool:
        """Whether this plan may replace `other`: a newer epoch always, else a newer generation of the same."""
        return other is None or (self.epoch, self.generation) > (other.epoch, other.generation)
