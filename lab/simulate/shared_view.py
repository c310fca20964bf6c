"""The exchange of load between the agents of a simulated region.

An agent of the product publishes within MIN_INTERVAL_S of a change and then reads the other agents' publications.
Without a change it reads at the interval of `exchange_interval_s`. Alternatively, all views have one given age.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.admission.model_queue import QueueHead
from penstock.fleet.shared_counts import exchange_interval_s
from regional_agent.shared_load.published_load import PublishedLoad


class Published(NamedTuple):
    """One publication of an agent."""

    at: float
    load: PublishedLoad
    head: QueueHead | None
    prefixes: dict[str, list[int]]
    """By endpoint: keys of the prefixes that the agent sent since its last publication of prefixes."""


class SharedView:
    """Stores the publications of a region's agents in order of time, in place of Redis."""

    def __init__(self, agents: int, age_s: float | None = None) -> None:
        """Create a store without publications.

        Args:
            age_s: age (s) of every view; None for the product's exchange of load.
        """
        self.age_s = age_s
        self.newest_at = 0.0
        """Time (s) of the newest publication."""
        self._by_agent: list[list[Published]] = [[] for _ in range(agents)]

    def publish(self, agent: int, published: Published) -> None:
        """Add a publication."""
        self._by_agent[agent].append(published)
        self.newest_at = published.at

    def reader(self, agent: int, phase_s: float) -> ViewReader:
        """Return the reader of an agent; its periodic reads are offset by `phase_s`."""
        others = [entries for number, entries in enumerate(self._by_agent) if number != agent]
        return ViewReader(self, others, phase_s)


class ViewReader:
    """Reads the other agents' publications for one agent."""

    def __init__(self, shared: SharedView, others: list[list[Published]], phase_s: float) -> None:
        """Create a reader; callers use `SharedView.reader`."""
        self.read_at = 0.0
        self._others = others
        self._next = [0] * len(others)
        self._shared = shared
        self._phase_s = phase_s

    def read(self, now: float, *, waits: bool = False, exchanges: bool = False) -> list[tuple[int, Published]]:
        """Return the publications that the agent has read since the last call, each with the number of its publisher.

        Args:
            waits: whether requests wait at the agent.
            exchanges: whether the agent publishes now, which includes a read.
        """
        before, self.read_at = self.read_at, max(self.read_at, self._last_read(now, waits, exchanges))
        found: list[tuple[int, Published]] = []
        if self._shared.age_s is None and self._shared.newest_at < before:
            return found
        for number, entries in enumerate(self._others):
            index = self._next[number]
            while index < len(entries) and entries[index].at <= self.read_at:
                found.append((number, entries[index]))
                index += 1
            self._next[number] = index
        return found

    def _last_read(self, now: float, waits: bool, exchanges: bool) -> float:
        if self._shared.age_s is not None:
            return now - self._shared.age_s
        if exchanges:
            return now
        interval_s = exchange_interval_s(now - self._shared.newest_at, requests_wait=waits)
        return now - (now + self._phase_s) % interval_s
