"""Reports of single endpoints, for operators only: the planner does not use them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.health.engines.engine_facts import ServedModel
from penstock.health.engines.gpu_metrics import GpuState

MAX_ENDPOINTS = 1_000
"""Maximum number of endpoints in one report."""

MAX_TEXT = 512
"""Maximum length, in characters, of a name, an address, or a model."""

MAX_MODELS = 64
"""Maximum number of models of one endpoint."""


class EndpointCondition(StrEnum):
    """State of an endpoint at an agent. If several states apply, the first in this order is reported."""

    DRAINING = "draining"
    """The endpoint accepts no new requests and finishes its current requests."""
    NEW = "new"
    """The endpoint has not been probed yet, or not since a connection attempt failed."""
    DOWN = "down"
    """Health probes fail."""
    SUSPECT = "suspect"
    """The requests of the endpoint make no progress, so the endpoint receives no new requests for a while."""
    EJECTED = "ejected"
    """Outlier ejection: requests failed, so the endpoint receives no request for a while, or a single trial request."""
    UNLOADED = "unloaded"
    """The endpoint responds but has none of its models loaded."""
    WARMING = "warming"
    """The endpoint is new or has recovered, and receives a growing share of requests."""
    READY = "ready"


class EndpointReport(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """State of one endpoint at one agent. Encoded as an array: append new fields at the end."""

    name: str
    """Name of the endpoint, unique in its region."""
    address: str
    """host:port."""
    models: tuple[str, ...]
    zone: str
    accelerator: str
    condition: EndpointCondition
    slots: int
    """Maximum concurrent requests."""
    in_flight: int
    """Requests in flight, of all agents of the region."""
    reason: str = ""
    """Reason why the endpoint is not ready; empty if the endpoint is ready."""
    engine_version: str = ""
    """Version that the engine reports; empty if it reports none."""
    served: tuple[ServedModel, ...] = ()
    """Revision and room of each model, as far as the engine reports them."""
    skew: str = ""
    """How the endpoint differs from policy or from its siblings; empty if it does not."""
    gpu: GpuState | None = None
    """State of its GPUs; None if they are not read."""
    is_burst: bool = False
    """Whether it is serverless, and receives requests only while no slot of the region's own endpoints is free."""

    def is_possible(self, max_count: int) -> bool:
        """Whether all counts and lengths are within their limits."""
        texts = (self.name, self.address, self.zone, self.accelerator, self.reason, *self.models)
        texts += (self.engine_version, self.skew, *(served.model for served in self.served))
        texts += tuple(served.revision for served in self.served)
        return (
            bool(self.name)
            and len(self.models) <= MAX_MODELS
            and len(self.served) <= MAX_MODELS
            and all(served.is_possible for served in self.served)
            and all(len(text) <= MAX_TEXT for text in texts)
            and (self.gpu is None or self.gpu.is_possible)
            and all(0 <= count <= max_count for count in (self.slots, self.in_flight))
        )
