"""Data types of the what-if evaluation: demand, capacity, and the outcome of each demand group."""

from __future__ import annotations

import msgspec

from penstock.fleet.capacity_groups import SharedSlots
from penstock.routing.reasons import Reason


class DemandGroup(msgspec.Struct, frozen=True):
    """Requests with equal attributes, and their rate."""

    origin: str
    """Region whose agent receives the client's requests; empty if the client uses steering."""
    tenant: str
    country: str | None
    """ISO 3166-1 alpha-2 code of the client's country; None if unknown."""
    model: str
    requests_per_s: float
    subdivision: str | None = None
    """ISO 3166-2 code of the client's subdivision, without the country part; None if unknown."""


class Capacity(msgspec.Struct, frozen=True):
    """Capacity of one region for one model."""

    region: str
    model: str
    slots: int
    """Maximum number of concurrent requests."""
    service_s: float
    """Mean time that one request holds a slot, in seconds."""
    shared: tuple[SharedSlots, ...] = ()
    """The part of `slots` that other models may use as well, by capacity group."""
    slots_per_endpoint: float | None = None
    """Slots of one endpoint; None takes `slots_per_endpoint` of the model's `scaling`."""
    burst_slots: int = 0
    """Maximum number of concurrent requests on burst endpoints, which are no part of `slots`."""

    @property
    def own_slots(self) -> float:
        """The part of `slots` that no other model may use."""
        return max(0.0, self.slots - sum(group.slots for group in self.shared))


class DemandOutcome(msgspec.Struct, frozen=True):
    """The regions that serve one group of the demand, and the share rejected."""

    residency: str
    """Name of its residency class; empty if it is rejected before one is assigned."""
    entry: str
    """Entry region; empty if the request has none."""
    servers: dict[str, float]
    """Share (0-1) that each region serves."""
    refused: dict[Reason, float]
    """Share (0-1) that is rejected, by reason; the sum of `servers` and `refused` is 1."""


class Totals(msgspec.Struct, frozen=True):
    """Totals of a demand under one policy."""

    requests_per_s: float
    served_per_s: float
    refused_per_s: dict[Reason, float]
    sent_elsewhere_per_s: float
    """Rate of requests that enter at another region, since residency forbids the origin or the origin is lost, in
    requests per second."""
    round_trip_ms: float
    """Mean inter-region round trip of served requests in milliseconds: origin to entry plus entry to server."""
    p95_round_trip_ms: float
    wait_ms: float
    """Mean expected wait for a slot, in milliseconds."""
    gpu_cost_per_hour: float
    """Price of the GPUs whose slots are busy, in the currency of the bundle: an endpoint has `gpus_per_endpoint` of the
    model's `scaling`, and each of its slots an equal part."""
    egress_cost_per_hour: float
    load: dict[str, float]
    """By region, the share (0-1) of busy slots over all models."""
    needed_endpoints: dict[str, dict[str, int]] = {}
    """By region and model, the endpoints that serve the admitted demand at the target utilisation, with the reserve for
    the loss of a region, within `min_endpoints` and `max_endpoints`."""
    burst_per_s: float = 0.0
    """The part of `served_per_s` that burst endpoints serve, since no slot of the planned region is free."""
    burst_cost_per_hour: float = 0.0
    """Its price, without cold starts, by the regions' prices per second; no part of `gpu_cost_per_hour`."""


class Evaluation(msgspec.Struct, frozen=True):
    """The result of evaluating a demand under one policy."""

    demand_outcomes: tuple[DemandOutcome, ...]
    """One for each group of the demand, in the same order."""
    totals: Totals
