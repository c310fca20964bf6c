"""Queues of several tenants as other gateways have them: in order of arrival, by strict priority, with quotas.

All agents of a region share one queue and exact counts, which is better than what separate gateways have. Only the
quotas are per agent, as where each replica of a gateway counts alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from lab.simulate.region import ONE_SENDER, Region, Served
from lab.traces.trace import TraceRequest

Key = Callable[[int], int]
"""Rank of a waiting request by its priority: the smallest is served first, then the oldest."""

_Entry = tuple[int, int, Served[TraceRequest]]


class TenantQueue:
    """The waiting requests of a region."""

    def __init__(self, region: Region[TraceRequest], key: Key, *, has_quotas: bool = False) -> None:
        """Create an empty queue.

        Args:
            has_quotas: each tenant has an equal part of the slots, which is divided equally among the agents.
        """
        self._region = region
        self._key = key
        self._slots = [kind.max_num_seqs for kind in region.fleet.kinds]
        self._quota: float = float("inf")
        if has_quotas:
            self._quota = max(1, sum(self._slots) // (region.agents * max(1, len(region.senders))))
        self._running: dict[tuple[int, str], int] = {}
        self._waiting: dict[tuple[int, str], deque[_Entry]] = {}
        """By agent and tenant, whose requests have one priority."""
        self._number = 0

    def add(self, agent: int, served: Served[TraceRequest]) -> None:
        """Add a request that an agent received."""
        self._number += 1
        tenant = served.request.tenant
        priority = self._region.senders.get(tenant, ONE_SENDER).priority
        entry = (self._key(priority), self._number, served)
        self._waiting.setdefault((agent, tenant), deque()).append(entry)
        self._serve()

    def _serve(self) -> None:
        in_flight = self._region.in_flight
        while True:
            index = min(range(len(self._slots)), key=lambda engine: in_flight[engine] / self._slots[engine])
            places = [
                place
                for place, entries in self._waiting.items()
                if entries and self._running.get(place, 0) < self._quota
            ]
            if in_flight[index] >= self._slots[index] or not places:
                return
            place = min(places, key=lambda each: self._waiting[each][0][:2])
            served = self._waiting[place].popleft()[2]
            self._running[place] = self._running.get(place, 0) + 1
            self._region.send(index, served, on_end=partial(self._ended, place))

    def _ended(self, place: tuple[int, str]) -> None:
        self._running[place] -= 1
        self._serve()


class QueueAgent:
    """One agent in front of a queue."""

    def __init__(self, queue: TenantQueue, number: int) -> None:
        """Create an agent. `number` is its index, from 0."""
        self._queue = queue
        self._number = number

    def arrive(self, served: Served[TraceRequest]) -> None:
        """As `Agent.arrive`."""
        self._queue.add(self._number, served)

    def notified(self, delay_s: float) -> None:
        """As `Agent.notified`; this agent ignores notifications."""


def _agents(region: Region[TraceRequest], key: Key, *, has_quotas: bool = False) -> list[QueueAgent]:
    queue = TenantQueue(region, key, has_quotas=has_quotas)
    return [QueueAgent(queue, number) for number in range(region.agents)]


def by_arrival(region: Region[TraceRequest]) -> list[QueueAgent]:
    """Return agents that serve the oldest request first."""
    return _agents(region, lambda priority: 0)


def by_priority(region: Region[TraceRequest]) -> list[QueueAgent]:
    """Return agents that serve the highest priority first, and of it the oldest request."""
    return _agents(region, lambda priority: -priority)


def with_quotas(region: Region[TraceRequest]) -> list[QueueAgent]:
    """Return agents that divide the slots equally among tenants and agents, and serve the oldest request first."""
    return _agents(region, lambda priority: 0, has_quotas=True)
