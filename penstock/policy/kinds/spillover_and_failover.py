"""Kinds of policy documents: overflow of healthy regions, and the loss and return of regions."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, UnsetType

from penstock.policy.fields import DERIVED, Conflict, Label, ModelRef, NonEmpty, PolicyStruct, RegionRef, bounds


class Spillover(PolicyStruct, frozen=True):
    """Conditions under which overflow may leave a healthy region. At most one per bundle."""

    target_utilisation: Annotated[float, bounds(gt=0, le=1)] = 0.8
    """Share (0-1) of a pool's slots that the plan fills before it sends more demand elsewhere."""
    margin_s: Annotated[float, bounds(ge=0, le=60)] = 0.25
    """Minimum time (s) by which a request must start sooner in another region, round trip included, to be sent there
    on a spill credit."""
    credit_ttl_s: Annotated[float, bounds(gt=0, le=60)] = 0.75
    """Lifetime (s) of a spill credit."""
    step_per_s: Annotated[float, bounds(ge=0.001, le=1)] = 0.25
    """Maximum share (0-1) of an origin's demand for a model that plans may move per second; failures are exempt."""
    shares_prefixes: bool | UnsetType = UNSET
    """Whether regions publish checksums of the prompt beginnings that their caches hold, to regions that may process
    these prompts. Overflow then prefers a region that need not compute its prompt again. Worth it for prompts of 10,000
    tokens and more. Absent: no."""


class SpilloverLimit(PolicyStruct, frozen=True):
    """Bounds on the price and share of overflow. Excluded overflow goes to another region, waits, or is refused.

    Failover is exempt: an excluded region still serves requests that no other permitted region can serve because the
    other regions are lost. Where several limits match an origin and model, all of them apply.
    """

    name: Label
    """Unique name; plans and explanations cite it."""
    origins: NonEmpty[frozenset[RegionRef]] = frozenset()
    """Names of the regions whose overflow is limited; absent: all."""
    models: NonEmpty[frozenset[ModelRef]] = frozenset()
    """Names of the models to which the limit applies; absent: all."""
    max_cost_per_gpu_hour: Annotated[float, bounds(ge=0, le=1e6)] | None = None
    """Regions with a higher `cost_per_gpu_hour` receive no overflow; null: any price."""
    max_share: Annotated[float, bounds(ge=0, le=1)] | None = None
    """Share (0-1) of an origin's demand in one traffic class that all other regions together may serve while the origin
    can serve. Only plans can enforce this limit, so spill credits are not used while it applies. null: any share."""
    source: Annotated[str, DERIVED] = ""
    """File and line of the limit."""

    def conflict(self) -> Conflict | None:
        if self.max_cost_per_gpu_hour is not None or self.max_share is not None:
            return None
        return Conflict("limits nothing", "give a number for one of max_cost_per_gpu_hour and max_share")


class Failover(PolicyStruct, frozen=True):
    """Detection of failed regions, and the return of their traffic. At most one per bundle."""

    probe_interval_s: Annotated[float, bounds(ge=0.05, le=60)] = 0.25
    """Time (s) between two probes of a peer region."""
    probe_timeout_s: Annotated[float, bounds(ge=0.05, le=60)] = 0.4
    """Time (s), in addition to the usual round trip of the pair, after which a probe without a response fails."""
    unhealthy_threshold: Annotated[int, bounds(ge=1, le=100)] = 2
    """Consecutive failed probes after which a suspect region is failed."""
    healthy_threshold: Annotated[int, bounds(ge=1, le=100)] = 3
    """Consecutive successful probes that a failed region needs to recover."""
    hold_down_s: Annotated[float, bounds(ge=0, le=3600)] = 5.0
    """Minimum time (s) that a failed region stays failed, so that flapping does not move traffic each time. A
    region that has not answered an agent since its start counts as failed after this time, 10 s at most."""
    failback_ramp_s: Annotated[float, bounds(ge=0, le=3600)] = 60.0
    """Time (s) over which a recovered region's share grows from 0 to its full value."""
