"""Mean sizes of the requests and responses of a model, which egress between regions is paid for."""

from __future__ import annotations

from math import isfinite
from typing import Final

import msgspec

from penstock.policy.kinds.models import Model

MEMORY_REQUESTS: Final = 1_000
"""Number of requests after which the mean follows the newest as an exponentially weighted one."""

PRIOR_REQUESTS: Final = 20
"""Number of requests as which the sizes of the policy count."""

MAX_MODELS: Final = 1_000
"""Maximum number of models in one report."""

MAX_BYTES: Final = 1e12
"""Largest mean size that is believed possible."""


class MessageBytes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sizes of one model's messages. Encoded as an array: append new fields."""

    model: str
    requests: int
    """Requests that the means are based on; at most MEMORY_REQUESTS of one agent."""
    request_bytes: float
    """Mean size (bytes) of a request body."""
    response_bytes: float
    """Mean size (bytes) of a response, its head included."""

    @property
    def is_possible(self) -> bool:
        """Whether the values are within their limits."""
        sizes = self.request_bytes, self.response_bytes
        return 0 <= self.requests <= MEMORY_REQUESTS and all(
            isfinite(size) and 0 <= size <= MAX_BYTES for size in sizes
        )

    def merged(self, other: MessageBytes) -> MessageBytes:
        """The means of both, by their numbers of requests."""
        total = self.requests + other.requests
        part = other.requests / total if total else 0.0
        return MessageBytes(
            self.model,
            total,
            self.request_bytes + part * (other.request_bytes - self.request_bytes),
            self.response_bytes + part * (other.response_bytes - self.response_bytes),
        )


def prior_bytes(model: Model) -> MessageBytes:
    """The sizes of the policy, with which measured ones are merged."""
    return MessageBytes(model.name, PRIOR_REQUESTS, model.request_bytes, model.response_bytes)


class BytesTally:
    """The sizes of one agent's messages, by model."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[str, list[float]] = {}
        """Number of requests, and both means."""

    def count(self, model: str, request_bytes: int, response_bytes: int) -> None:
        """Count a request that was answered."""
        known = self._of.get(model)
        if known is None:
            if len(self._of) < MAX_MODELS:
                self._of[model] = [1.0, float(request_bytes), float(response_bytes)]
            return
        if known[0] < MEMORY_REQUESTS:
            known[0] += 1.0
        known[1] += (request_bytes - known[1]) / known[0]
        known[2] += (response_bytes - known[2]) / known[0]

    def of(self, model: Model) -> MessageBytes:
        """Return the sizes of a model; of few requests they count little beside those of the policy."""
        known, prior = self._of.get(model.name), prior_bytes(model)
        return prior if known is None else prior.merged(MessageBytes(model.name, int(known[0]), known[1], known[2]))

    def report(self) -> tuple[MessageBytes, ...]:
        """Return the sizes by model."""
        return tuple(
            MessageBytes(model, int(requests), request_bytes, response_bytes)
            for model, (requests, request_bytes, response_bytes) in self._of.items()
        )
