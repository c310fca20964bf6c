"""Where clients come in, and how traffic moves between regions that may serve it: nearest first, overflow, failure."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.policy.kinds.base import (
    REMEDY,
    Label,
    ModelName,
    NonEmptyList,
    PolicyDocument,
    StrictModel,
    SubdivisionCode,
    Text,
)

RttMs = Annotated[float, Field(ge=0, le=10_000)]


class GeoRoutingDocument(PolicyDocument):
    """How far apart regions are. Exactly one a bundle."""

    kind: Literal["GeoRouting"]
    rtt_ms: dict[Label, dict[Label, RttMs]] = Field(default_factory=dict)
    """Measured round trips (ms) from origin to server; a pair that is missing is estimated from where the two are."""


class ClientLocations(StrictModel):
    """Where clients are; those in either list count."""

    countries: NonEmptyList[str] = Field(default_factory=list)
    """ISO 3166-1 alpha-2 codes and names of blocs."""
    subdivisions: NonEmptyList[SubdivisionCode] = Field(default_factory=list)
    """ISO 3166-2 codes of a country's first level, such as `US-CA`; they go before a map of the whole country."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.countries and not self.subdivisions:
            raise PydanticCustomError(
                REMEDY, "names no place", {"remedy": "write `countries`, `subdivisions`, or both"}
            )
        return self


class EntryMapDocument(PolicyDocument):
    """Where clients of some places should come in, before whatever is nearest. A preference: residency goes first."""

    kind: Literal["EntryMap"]
    name: Label
    """Unique name; of several maps about one client, the first by name counts."""
    description: Text = Field("", max_length=500)
    """For people: why they should."""
    clients: ClientLocations
    """Whom it is about; clients whose place is not known are in no map."""
    regions: NonEmptyList[Label]
    """Names of regions, best first; the other permitted ones follow, the nearest first."""


class SpilloverDocument(PolicyDocument):
    """When a healthy region's overflow may leave it. Exactly one a bundle."""

    kind: Literal["Spillover"]
    target_utilisation: float = Field(0.8, gt=0, le=1)
    """Share of a pool's slots that the plan fills before it sends more demand elsewhere."""
    margin_s: float = Field(0.25, ge=0, le=60)
    """How much sooner (s) than here, after the round trip, a request must start elsewhere to leave beyond the plan."""
    credit_ttl_s: float = Field(0.75, gt=0, le=60)
    """How long (s) a granted spill credit may be spent."""
    step_per_s: float = Field(0.25, ge=0.001, le=1)
    """How much (0-1) of an origin's demand for a model the plan may move per second, failures excepted."""


class SpilloverLimitDocument(PolicyDocument):
    """How dear and how much overflow may be: what holds it back goes elsewhere, waits, or is refused.

    Failover is no overflow: a region that is too dear still takes what no other permitted region can serve, because
    those are lost. Of several limits about one origin and model each holds.
    """

    kind: Literal["SpilloverLimit"]
    name: Label
    """Unique name; plans and explanations cite it."""
    description: Text = Field("", max_length=500)
    """For people: why."""
    origins: NonEmptyList[Label] = Field(default_factory=list)
    """Names of the regions whose overflow it is about; absent for all."""
    models: NonEmptyList[ModelName] = Field(default_factory=list)
    """Names of the models that it is about; absent for all."""
    max_cost_per_gpu_hour: float | None = Field(None, ge=0, le=1e6)
    """Regions whose `cost_per_gpu_hour` is more get no overflow; null for any price."""
    max_share: float | None = Field(None, ge=0, le=1)
    """How much (0-1) of an origin's demand in one traffic class may be served elsewhere while the origin can serve, all
    other regions together. Plans alone can see to that, so nothing leaves on spill credits then. null for any part."""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.max_cost_per_gpu_hour is None and self.max_share is None:
            raise PydanticCustomError(
                REMEDY, "limits nothing", {"remedy": "give a number for one of max_cost_per_gpu_hour and max_share"}
            )
        return self


class FailoverDocument(PolicyDocument):
    """When a region counts as lost, and how it comes back. Exactly one a bundle."""

    kind: Literal["Failover"]
    probe_interval_s: float = Field(0.25, ge=0.05, le=60)
    """Time (s) between two probes of a peer region."""
    probe_timeout_s: float = Field(0.5, ge=0.05, le=60)
    """A probe unanswered for this long (s), beyond the pair's usual round trip, is a miss."""
    unhealthy_threshold: int = Field(2, ge=1, le=100)
    """Consecutive misses that turn suspect into failed."""
    healthy_threshold: int = Field(3, ge=1, le=100)
    """Consecutive good probes that a failed region needs."""
    hold_down_s: float = Field(5.0, ge=0, le=3600)
    """Least time (s) that a failed region stays failed, so that a flapping one does not drag traffic about."""
    failback_ramp_s: float = Field(60.0, ge=0, le=3600)
    """Time (s) over which a recovered region's share grows from nothing to whole."""
