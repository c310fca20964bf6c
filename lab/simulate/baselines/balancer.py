"""The interface of every baseline: one instance for each agent, which chooses an endpoint when a request arrives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from random import Random
from typing import NamedTuple, Protocol


class Arrival(NamedTuple):
    """What a balancer reads of a request."""

    prompt_tokens: int
    prefix: tuple[int, ...]
    """An id for each leading block of BLOCK_TOKENS tokens; equal ids mean an equal prefix."""
    at: float
    """When it arrived (s)."""


class EngineReport(NamedTuple):
    """What an engine's metrics page contains."""

    running: int
    waiting: int
    kv_used: float
    """Share (0-1) of its KV cache."""


class Probe(NamedTuple):
    """The reply of a server to a probe of Prequal."""

    in_flight: int
    latency_s: float
    """Median latency (s) of recent requests that arrived at about this many requests in flight."""


class PoolView(Protocol):
    """What one agent knows of the endpoints, by index."""

    size: int
    weights: tuple[float, ...]
    """Configured weight of each endpoint: its relative speed."""

    def in_flight(self, index: int) -> int:
        """Requests on an endpoint: those of this agent, and those of others as far as the agent receives them."""

    def report(self, index: int) -> EngineReport:
        """The engine's last report."""

    def probe(self, index: int) -> Probe:
        """Ask the server."""


class Balancer(ABC):
    """Chooses endpoints for one agent."""

    def __init__(self, pool: PoolView, rng: Random) -> None:
        """Create a balancer that has sent nothing."""
        self.pool = pool
        self.rng = rng

    @abstractmethod
    def choose(self, arrival: Arrival, now: float) -> int | None:
        """The index of the endpoint for a request; None leaves it in the agent's queue."""

    def sent(self, index: int, arrival: Arrival, now: float) -> None:
        """Note that a request was sent."""
        return

    def first_token(self, index: int, arrival: Arrival) -> None:
        """Note the first token of a response."""
        return

    def least(self, scored: Iterable[tuple[float, int]]) -> int:
        """The index with the least score; ties are broken at random."""
        best, found = float("inf"), [0]
        for score, index in scored:
            if score < best:
                best, found = score, [index]
            elif score == best:
                found.append(index)
        return found[0] if len(found) == 1 else self.rng.choice(found)
