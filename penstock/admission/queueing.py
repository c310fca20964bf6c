"""Late binding: a request without a free slot waits in the agent, bound to no engine, and goes to the first slot that
becomes free.

Higher priority goes first; within a priority, the request that gives up soonest (earliest deadline first, Liu &
Layland, JACM 1973). The queue is bounded in requests and bytes. A full queue displaces a request of the tenant with the
most requests in it, so that one tenant's burst does not lock out the others. A request that would time out before its
turn is refused at once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from math import ceil, inf
from operator import attrgetter
from random import Random
from typing import Generic, TypeVar

Item = TypeVar("Item")

MAX_WAIT_S = 20.0
"""Maximum wait (s) of a request: after that its client, or the client's load balancer, has a better choice."""

CREDIT_WAIT_S = 1.0
"""Maximum wait (s) for a credit of an idle region if the wait at home is too long: a few rounds of the probes that
request the credit."""

MAX_WAITING = 4096
"""Maximum number of requests that wait for one model."""

MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Maximum size (bytes) of the bodies that wait for one model."""

MIN_RETRY_S = 1.0
"""Minimum Retry-After (s); also used if the time to retry is unknown."""

MIN_SPREAD_S = 2
"""Clients that may retry at the same time are spread over at least this long (s)."""

_key = attrgetter("key")


class QueuedRequest(Generic[Item]):
    """One request in the queue."""

    __slots__ = (
        "give_up_at",
        "item",
        "key",
        "leave_at",
        "number",
        "priority",
        "since",
        "size_bytes",
        "tenant",
        "waits",
    )

    def __init__(
        self, item: Item, tenant: str, priority: int, size_bytes: int, since: float, give_up_at: float, number: int
    ) -> None:
        """Created by `Queue.join`."""
        self.item = item
        self.tenant = tenant
        self.priority = priority
        self.size_bytes = size_bytes
        self.since = since
        self.give_up_at = give_up_at
        self.number = number
        """Among all requests that ever joined this queue, counted from 1."""
        self.key = (-priority, give_up_at, number)
        self.leave_at = give_up_at
        self.waits = True
        """Whether it is still in the queue."""


class Queue(Generic[Item]):
    """Requests for one model that wait for room, in the order in which they will get it."""

    def __init__(self, most: int = MAX_WAITING, max_bytes: int = MAX_WAITING_BYTES) -> None:
        """Create an empty queue."""
        self._most = most
        self._max_bytes = max_bytes
        self._order: list[QueuedRequest[Item]] = []
        self._by_deadline: list[tuple[float, int, QueuedRequest[Item]]] = []
        self._counts: dict[tuple[int, str], int] = {}
        self._bytes = 0
        self._number = 0

    def __len__(self) -> int:
        return len(self._order)

    def join(
        self,
        item: Item,
        tenant: str,
        priority: int,
        size_bytes: int,
        now: float,
        give_up_at: float,
        leave_at: float = inf,
    ) -> tuple[QueuedRequest[Item] | None, list[QueuedRequest[Item]]]:
        """Add a request if the queue's bounds permit it; the list contains the requests that were displaced for it.

        Args:
            size_bytes: memory that its body holds.
            give_up_at: deadline (s, the clock of `now`), which determines the order.
            leave_at: an earlier time (s) at which it leaves, which does not affect the order.
        """
        if size_bytes > self._max_bytes:
            return None, []
        displaced: list[QueuedRequest[Item]] = []
        while len(self._order) >= self._most or self._bytes + size_bytes > self._max_bytes:
            victim = self._victim(tenant, priority)
            if victim is None:
                for entry in displaced:
                    self._enter(entry)
                return None, []
            self.leave(victim)
            displaced.append(victim)
        self._number += 1
        waiting = QueuedRequest(item, tenant, priority, size_bytes, now, give_up_at, self._number)
        waiting.leave_at = min(give_up_at, leave_at)
        self._enter(waiting)
        return waiting, displaced

    def leave(self, waiting: QueuedRequest[Item]) -> None:
        """Remove a request that was dispatched, cancelled, or timed out. A second call does nothing."""
        if not waiting.waits:
            return
        waiting.waits = False
        del self._order[bisect_left(self._order, waiting.key, key=_key)]
        self._bytes -= waiting.size_bytes
        share = (waiting.priority, waiting.tenant)
        self._counts[share] -= 1
        if not self._counts[share]:
            del self._counts[share]
        if len(self._by_deadline) > 2 * len(self._order):
            self._compact_deadlines()

    def in_order(self) -> list[QueuedRequest[Item]]:
        """All requests in order, as a copy that later changes do not affect."""
        return self._order[:]

    def head(self) -> QueuedRequest[Item] | None:
        """The first request; None for an empty queue."""
        return self._order[0] if self._order else None

    def ahead_of(self, priority: int, give_up_at: float) -> int:
        """Number of requests that precede one that joins now."""
        return bisect_left(self._order, (-priority, give_up_at, self._number + 1), key=_key)

    def give_up(self, now: float) -> list[QueuedRequest[Item]]:
        """Remove and return the requests whose time to wait is over."""
        late = []
        while self._by_deadline and (self._by_deadline[0][0] <= now or not self._by_deadline[0][2].waits):
            waiting = heappop(self._by_deadline)[2]
            if waiting.waits:
                self.leave(waiting)
                late.append(waiting)
        return late

    def _enter(self, waiting: QueuedRequest[Item]) -> None:
        waiting.waits = True
        insort(self._order, waiting, key=_key)
        heappush(self._by_deadline, (waiting.leave_at, waiting.number, waiting))
        self._bytes += waiting.size_bytes
        share = (waiting.priority, waiting.tenant)
        self._counts[share] = self._counts.get(share, 0) + 1

    def _compact_deadlines(self) -> None:
        """Remove entries of requests that left, often enough to bound memory and rarely enough to cost next to
        nothing.
        """
        self._by_deadline = [entry for entry in self._by_deadline if entry[2].waits]
        heapify(self._by_deadline)

    def _victim(self, tenant: str, priority: int) -> QueuedRequest[Item] | None:
        """The last request of the tenant with the most of the lowest priority; None if the new request would be behind
        it.
        """
        if not self._order or self._order[-1].priority > priority:
            return None
        lowest = self._order[-1].priority
        count, heaviest = max((count, name) for (level, name), count in self._counts.items() if level == lowest)
        if lowest == priority and count <= self._counts.get((priority, tenant), 0) + 1:
            return None
        return next(entry for entry in reversed(self._order) if entry.tenant == heaviest and entry.priority == lowest)


def give_up_at(now: float, deadline_at: float) -> float:
    """The time (s, the clock of `now`) until which a request with this deadline may wait."""
    return min(deadline_at, now + MAX_WAIT_S)


def retry_after_s(wait_s: float) -> float:
    """Time (s) after which a refused client should retry: when half of the excess wait has passed.

    Args:
        wait_s: how long one more request would wait now.
    """
    return max(MIN_RETRY_S, min(wait_s - MAX_WAIT_S / 2, 6 * MAX_WAIT_S))


def spread_retry_after_s(wait_s: float, rng: Random) -> int:
    """The Retry-After of a refused client, in whole seconds, spread at random.

    Clients that are refused together would return together and be refused again, so they are spread evenly over half as
    long again.

    Args:
        wait_s: minimum time until the retry, in seconds.
    """
    earliest_s = ceil(max(MIN_RETRY_S, wait_s))
    return earliest_s + rng.randrange(max(MIN_SPREAD_S, ceil(earliest_s / 2)) + 1)
