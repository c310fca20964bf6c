"""Data types of the what-if evaluation: demand, capacity, and the outcome of each demand group."""

from __future__ import annotations

import msgspec

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
