"""The beginnings of prompts that requests of one region share, by how often they were requested recently.

A region publishes them to the other regions (`prefix_sketch`). The number of entries is bounded, and a tenant that
floods the record with new prompts evicts its own entries first, as they were requested once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import exp
from typing import Final

from penstock.routing.affinity import HELD_S, SCOPE_SHIFT

ANCHORS: Final = (4, 8, 16, 32, 64)
"""Numbers of leading blocks at which beginnings are compared between regions. Shorter ones are not worth a trip."""

SHORTEST: Final = ANCHORS[0]

MAX_RECORDED: Final = 8192
"""Maximum number of beginnings that one agent records, about 300 bytes each."""

EVICTION_SAMPLE: Final = 8
"""Number of the least recently requested entries among which the one with the fewest requests is evicted."""

MIN_REQUESTS: Final = 1.5
"""Minimum number of recent requests for a beginning to be published: one that a single request had is not shared."""


class _Heat:
    __slots__ = ("at", "permitted", "requests")

    def __init__(self, permitted: frozenset[str], at: float) -> None:
        self.requests = 0.0
        """Number of requests, decayed with the time constant HELD_S up to `at`."""
        self.at = at
        self.permitted = permitted

    def requests_at(self, now: float) -> float:
        return self.requests * exp(-max(0.0, now - self.at) / HELD_S)


class HotPrefixes:
    """The recently requested beginnings of prompts at one agent."""

    def __init__(self, most: int = MAX_RECORDED) -> None:
        """Create an empty record of at most `most` beginnings."""
        self._most = most
        self._heat: dict[int, _Heat] = {}

    def __len__(self) -> int:
        return len(self._heat)

    def sent(self, prefix: Sequence[int], permitted: frozenset[str], now: float) -> None:
        """Record that a request was sent to an endpoint of this region at `now` (s, monotonic).

        Args:
            prefix: keys of the leading blocks of its prompt.
            permitted: regions that may process the request. A beginning is published only to regions that may process
                every request that had it.
        """
        for blocks in ANCHORS:
            if blocks > len(prefix):
                return
            self._count(prefix[blocks - 1], permitted, now)

    def hottest(self, region: str, most: int, now: float) -> list[int]:
        """Return the keys of up to `most` beginnings that may be published to `region`, at `now` (s, monotonic).

        Every scope (tenant and model) has the same number of places, and those that it leaves go to the others.
        """
        by_scope: dict[int, list[tuple[float, int]]] = {}
        for key, heat in self._heat.items():
            if region in heat.permitted and now - heat.at < HELD_S:
                requests = heat.requests_at(now)
                if requests >= MIN_REQUESTS:
                    by_scope.setdefault(key >> SCOPE_SHIFT, []).append((-requests, key))
        ranked = [
            (rank, requests, key) for found in by_scope.values() for rank, (requests, key) in enumerate(sorted(found))
        ]
        return [key for _, _, key in sorted(ranked)[:most]]

    def _count(self, key: int, permitted: frozenset[str], now: float) -> None:
        heat = self._heat.pop(key, None)
        if heat is None:
            heat = _Heat(permitted, now)
            if len(self._heat) >= self._most:
                self._evict(now)
        heat.requests, heat.at = heat.requests_at(now) + 1.0, now
        if heat.permitted != permitted:
            heat.permitted &= permitted
        self._heat[key] = heat

    def _evict(self, now: float) -> None:
        oldest = islice(self._heat.items(), EVICTION_SAMPLE)
        del self._heat[min(oldest, key=lambda item: item[1].requests_at(now))[0]]
