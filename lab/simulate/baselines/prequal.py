"""Prequal: probes and the hot-cold lexicographic rule.

Source: Wydrowski, Kleinberg, Rumble, Archer, "Load is not what you should balance: Introducing Prequal", NSDI 2024.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from lab.quantile import quantile
from lab.simulate.baselines.balancer import Arrival, Balancer, PoolView, Probe

PROBES = 3
"""Number of probes to random servers for each request (r_probe)."""

POOL_SIZE = 16
"""Maximum number of retained replies."""

MAX_AGE_S = 1.0
"""Maximum age (s) of a reply."""

HOT_QUANTILE = 2**-0.25
"""Quantile of the requests in flight in recent replies above which a server is hot (Q_RIF)."""

RECENT_REPLIES = 100
"""Number of replies from which the quantile is estimated."""


class _Reply(NamedTuple):
    server: int
    probe: Probe
    at: float


class Prequal(Balancer):
    """The server with the lowest latency that is not hot; if all are hot, the server with the fewest requests."""

    def __init__(self, pool: PoolView, rng: Random) -> None:
        """Create a balancer without replies."""
        super().__init__(pool, rng)
        self._replies: list[_Reply] = []
        self._recent: list[int] = []
        self._removes_worst = False

    def choose(self, arrival: Arrival, now: float) -> int:
        """As `Balancer.choose`, in synchronous mode: the probes reply before the request is sent."""
        for index in self.rng.sample(range(self.pool.size), min(PROBES, self.pool.size)):
            reply = _Reply(index, self.pool.probe(index), now)
            self._replies = [old for old in self._replies if old.server != index]
            self._replies.append(reply)
            self._recent.append(reply.probe.in_flight)
        del self._recent[:-RECENT_REPLIES]
        self._replies = [old for old in self._replies if now - old.at <= MAX_AGE_S][-POOL_SIZE:]
        hot_from = quantile(self._recent, HOT_QUANTILE) or 0.0
        best = min(self._replies, key=lambda reply: self._rank(reply, hot_from))
        self._replies.remove(best)
        if len(self._replies) > PROBES:
            self._remove_one(hot_from)
        # The reply is retained with its count increased by the sent request (section 4.2).
        self._replies.append(best._replace(probe=best.probe._replace(in_flight=best.probe.in_flight + 1)))
        return best.server

    def _rank(self, reply: _Reply, hot_from: float) -> tuple[bool, float]:
        is_hot = reply.probe.in_flight > hot_from
        return is_hot, reply.probe.in_flight if is_hot else reply.probe.latency_s

    def _remove_one(self, hot_from: float) -> None:
        """Remove the oldest and the worst reply alternately."""
        self._removes_worst = not self._removes_worst
        if self._removes_worst:
            self._replies.remove(max(self._replies, key=lambda reply: self._rank(reply, hot_from)))
        else:
            del self._replies[0]
