"""Kinds for routing: entry of clients, spillover, failover."""

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
    """Measured distances between regions. At most one per bundle."""

    kind: Literal["GeoRouting"]
    rtt_ms: dict[Label, dict[Label, RttMs]] = Field(default_factory=dict)
    """Measured round trips (ms) from origin to server; a missing pair is estimated from the distance on Earth."""


class ClientLocations(StrictModel):
    """Locations of clients; a client in either list matches."""

    countries: NonEmptyList[str] = Field(default_factory=list)
    """ISO 3166-1 alpha-2 codes and names of blocs."""
    subdivisions: NonEmptyList[SubdivisionCode] = Field(default_factory=list)
    """ISO 3166-2 codes of a country's first level, such as `US-CA`; a map that lists the
    subdivision takes precedence over a map of the whole country."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.countries and not self.subdivisions:
            raise PydanticCustomError(
                REMEDY, "selects no clients", {"remedy": "write `countries`, `subdivisions`, or both"}
            )
        return self


class EntryMapDocument(PolicyDocument):
    """Preferred entry regions of clients in some locations. Residency takes precedence over the preference."""

    kind: Literal["EntryMap"]
    name: Label
    """Unique name; of several maps that match a client, the first by name counts."""
    description: Text = Field("", max_length=500)
    """Free text: the reason for the map."""
    clients: ClientLocations
    """Clients that the map applies to; a client whose location is unknown matches no map."""
    regions: NonEmptyList[Label]
    """Names of regions, best first; the other permitted regions follow, nearest first."""


class SpilloverDocument(PolicyDocument):
    """Conditions under which overflow may leave a healthy region. At most one per bundle."""

    kind: Literal["Spillover"]
    target_utilisation: float = Field(0.8, gt=0, le=1)
    """Share (0-1) of a pool's slots that the plan fills before it sends more demand elsewhere."""
    margin_s: float = Field(0.25, ge=0, le=60)
    """Minimum time (s) by which a request must start sooner in another region, round trip included, to be sent there
    on a spill credit."""
    credit_ttl_s: float = Field(0.75, gt=0, le=60)
    """Lifetime (s) of a spill credit."""
    step_per_s: float = Field(0.25, ge=0.001, le=1)
    """Maximum share (0-1) of an origin's demand for a model that plans may move per second; failures are exempt."""


class SpilloverLimitDocument(PolicyDocument):
    """Bounds on the price and share of overflow. Excluded overflow goes to another region, waits, or is refused.

    Failover is exempt: an excluded region still serves requests that no other permitted region can serve because the
    other regions are lost. Where several limits match an origin and model, all of them apply.
    """

    kind: Literal["SpilloverLimit"]
    name: Label
    """Unique name; plans and explanations cite it."""
    description: Text = Field("", max_length=500)
    """Free text: the reason for the limit."""
    origins: NonEmptyList[Label] = Field(default_factory=list)
    """Names of the regions whose overflow is limited; absent: all."""
    models: NonEmptyList[ModelName] = Field(default_factory=list)
    """Names of the models to which the limit applies; absent: all."""
    max_cost_per_gpu_hour: float | None = Field(None, ge=0, le=1e6)
    """Regions with a higher `cost_per_gpu_hour` receive no overflow; null: any price."""
    max_share: float | None = Field(None, ge=0, le=1)
    """Share (0-1) of an origin's demand in one traffic class that all other regions together may serve while the origin
    can serve. Only plans can enforce this limit, so spill credits are not used while it applies. null: any share."""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.max_cost_per_gpu_hour is None and self.max_share is None:
            raise PydanticCustomError(
                REMEDY, "limits nothing", {"remedy": "give a number for one of max_cost_per_gpu_hour and max_share"}
            )
        return self


class FailoverDocument(PolicyDocument):
    """Detection of failed regions, and the return of their traffic. At most one per bundle."""

    kind: Literal["Failover"]
    probe_interval_s: float = Field(0.25, ge=0.05, le=60)
    """Time (s) between two probes of a peer region."""
    probe_timeout_s: float = Field(0.4, ge=0.05, le=60)
    """Time (s), in addition to the usual round trip of the pair, after which a probe without a response fails."""
    unhealthy_threshold: int = Field(2, ge=1, le=100)
    """Consecutive failed probes after which a suspect region is failed."""
    healthy_threshold: int = Field(3, ge=1, le=100)
    """Consecutive successful probes that a failed region needs to recover."""
    hold_down_s: float = Field(5.0, ge=0, le=3600)
    """Minimum time (s) that a failed region stays failed, so that flapping does not move traffic each time."""
    failback_ramp_s: float = Field(60.0, ge=0, le=3600)
    """Time (s) over which a recovered region's share grows from 0 to its full value."""
