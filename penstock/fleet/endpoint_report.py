"""What an agent tells the control plane of single endpoints now and then: for people, for nothing is planned by it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

MAX_ENDPOINTS = 1_000
"""Endpoints that one report tells of."""

MAX_TEXT = 512
"""Characters of a name, an address, or a model."""

MAX_MODELS = 64
"""Models of one endpoint."""


class EndpointCondition(StrEnum):
    """What an agent believes of an endpoint, in one word; of several that hold, the first."""

    DRAINING = "draining"
    """It takes no new requests, and finishes those that it has."""
    NEW = "new"
    """Nothing is known of it yet, or not since a request could not connect."""
    DOWN = "down"
    """Its health probes fail."""
    EJECTED = "ejected"
    """Requests failed on it, so it gets none for a while, or one on trial."""
    UNLOADED = "unloaded"
    """It lives, and has none of its models loaded."""
    WARMING = "warming"
    """It came back or is new, and gets fewer requests than it will."""
    READY = "ready"


class EndpointReport(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One endpoint as one agent sees it. Fields are told in order and without names: add new ones at the end."""

    name: str
    """Unique in the region."""
    address: str
    """host:port."""
    models: tuple[str, ...]
    zone: str
    accelerator: str
    condition: EndpointCondition
    slots: int
    """Requests that it runs at once."""
    in_flight: int
    """Requests on it now, of all agents of the region."""

    def is_possible(self, max_count: int) -> bool:
        """Whether its numbers and lengths can be."""
        texts = (self.name, self.address, self.zone, self.accelerator, *self.models)
        return (
            bool(self.name)
            and len(self.models) <= MAX_MODELS
            and all(len(text) <= MAX_TEXT for text in texts)
            and all(0 <= count <= max_count for count in (self.slots, self.in_flight))
        )
