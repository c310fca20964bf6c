"""The interface of baselines: each agent has an instance, which chooses an endpoint for each request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from random import Random
from typing import NamedTuple, Protocol


class Arrival(NamedTuple):
    """The properties of a request that a balancer reads."""

    prompt_tokens: int
    prefix: tuple[int, ...]
    """An id for each leading block of BLOCK_TOKENS tokens; equal ids mean an equal prefix."""
    at: float
    """Arrival time (s)."""


class EngineReport(NamedTuple):
    """The metrics of an engine that a balancer reads."""

    running: int
    waiting: int
    kv_used: float
    """Used share (0-1) of the KV cache."""


class Probe(NamedTuple):
    """The reply of a server to a Prequal probe."""

    in_flight: int
    latency_s: float
    """Median latency (s) of the recent requests that arrived at a number in flight nearest to `in_flight`."""


class PoolView(Protocol):
    """The view of one agent of the endpoints, by index."""

    size: int
    weights: tuple[float, ...]
    """Configured weight of each endpoint: the relative speed."""

    def in_flight(self, index: int) -> int:
        """Return the requests in flight on an endpoint: the agent's own count plus the counts of other agents."""

    def report(self, index: int) -> EngineReport:
        """Return the engine's last report."""

    def probe(self, index: int) -> Probe:
        """Probe an endpoint."""


class Balancer(ABC):
    """Chooses endpoints for one agent."""

    def __init__(self, pool: PoolView, rng: Random) -> None:
        """Create a balancer without requests."""
        self.pool = pool
        self.rng = rng

    @abstractmethod
    def choose(self, arrival: Arrival, now: float) -> int | None:
        """Return the index of the endpoint for a request; None leaves the request in the agent's queue."""

    def sent(self, index: int, arrival: Arrival, now: float) -> None:
        """Record that a request was sent to an endpoint."""
        return

    def first_token(self, index: int, arrival: Arrival) -> None:
        """Record the first token of a response."""
        return

    def least(self, scored: Iterable[tuple[float, int]]) -> int:
        """Return the index with the lowest score; ties are broken at random."""
        best, found = float("inf"), [0]
        for score, index in scored:
            if score < best:
                best, found = score, [index]
            elif score == best:
                found.append(index)
        return found[0] if len(found) == 1 else self.rng.choice(found)
