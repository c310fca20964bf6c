"""What is asked for, what could serve it, and what becomes of it: the nouns of what-if."""

from __future__ import annotations

import msgspec

from penstock.routing.reasons import Reason


class Asked(msgspec.Struct, frozen=True):
    """One kind of request, and how often it comes."""

    origin: str
    """Region whose agent the client's request lands on; empty where the client asks for an entry (steering)."""
    tenant: str
    country: str | None
    """ISO 3166-1 alpha-2 of the client; None where it is not known."""
    model: str
    requests_per_s: float
    subdivision: str | None = None
    """ISO 3166-2 without the country part."""


class Capacity(msgspec.Struct, frozen=True):
    """What one region can run of one model."""

    region: str
    model: str
    slots: int
    """Requests at once."""
    service_s: float
    """Mean time (s) one request holds a slot."""


class Fate(msgspec.Struct, frozen=True):
    """What becomes of one kind of request."""

    residency: str
    """Name of its residency class; empty where it is refused before it has one."""
    entry: str
    """Region whose agent reads it; empty where none does."""
    servers: dict[str, float]
    """Share (0-1) of it that each region serves."""
    refused: dict[Reason, float]
    """Share of it that is refused, by reason; all shares together are 1."""
