"""Late binding: a request that finds no room waits here, bound to no engine, and goes wherever room appears first.

Higher priority goes first; within one, whoever has to give up soonest (earliest deadline first, Liu & Layland, JACM
1973). The queue is bounded in requests and bytes. When it is full the tenant that fills it most makes room, so that one
tenant's burst does not lock the others out; a request that would give up before its turn is refused at once.
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
"""Nobody waits for room longer than this (s): the client, or whoever steers it, knows better by then."""

CREDIT_WAIT_S = 1.0
"""A request that home would take too long for waits this long (s) for a credit of a region that stands idle: a few
rounds of probes, in which such a region hears that it is wanted."""

MAX_WAITING = 4096
"""Requests that wait for one model at the most, however short the wait."""

MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Bodies that wait for one model at the most."""

MIN_RETRY_S = 1.0
"""No client is asked to come again sooner (s); also where nothing tells when it would be of use."""

MIN_SPREAD_S = 2
"""Those who may come again at the same time are spread over this long (s) at least."""

_key = attrgetter("key")


class Waiting(Generic[Item]):
    """One request's place in the queue."""

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
        """Made by `Queue.join`."""
        self.item = item
        self.tenant = tenant
        self.priority = priority
        self.size_bytes = size_bytes
        self.since = since
        self.give_up_at = give_up_at
        self.number = number
        """Of all that ever joined this queue, counted from 1."""
        self.key = (-priority, give_up_at, number)
        self.leave_at = give_up_at
        self.waits = True
        """Whether it is still in the queue."""


class Queue(Generic[Item]):
    """Requests for one model that wait for room, in the order in which they will get it."""

    def __init__(self, most: int = MAX_WAITING, max_bytes: int = MAX_WAITING_BYTES) -> None:
        """Empty."""
        self._most = most
        self._max_bytes = max_bytes
        self._order: list[Waiting[Item]] = []
        self._by_deadline: list[tuple[float, int, Waiting[Item]]] = []
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
    ) -> tuple[Waiting[Item] | None, list[Waiting[Item]]]:
        """Take a request in, or not; who had to make room for it is in the list.

        Args:
            size_bytes: memory that its body holds.
            give_up_at: when (s, the clock of `now`) waiting makes no sense any more; who is first follows from it.
            leave_at: when it gives up before that, without being any more urgent.
        """
        if size_bytes > self._max_bytes:
            return None, []
        displaced: list[Waiting[Item]] = []
        while len(self._order) >= self._most or self._bytes + size_bytes > self._max_bytes:
            victim = self._victim(tenant, priority)
            if victim is None:
                for one in displaced:
                    self._enter(one)
                return None, []
            self.leave(victim)
            displaced.append(victim)
        self._number += 1
        waiting = Waiting(item, tenant, priority, size_bytes, now, give_up_at, self._number)
        waiting.leave_at = min(give_up_at, leave_at)
        self._enter(waiting)
        return waiting, displaced

    def leave(self, waiting: Waiting[Item]) -> None:
        """Take one out: it got room, its client left, or it gave up. A second time does nothing."""
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
            self._forget_who_left()

    def in_order(self) -> list[Waiting[Item]]:
        """Everybody, first those who get room first; what happens to the queue later does not change the list."""
        return self._order[:]

    def head(self) -> Waiting[Item] | None:
        """Whose turn it is; None while nobody waits."""
        return self._order[0] if self._order else None

    def ahead_of(self, priority: int, give_up_at: float) -> int:
        """How many would get room before a request that joins now."""
        return bisect_left(self._order, (-priority, give_up_at, self._number + 1), key=_key)

    def give_up(self, now: float) -> list[Waiting[Item]]:
        """Take out and return those for whom it is too late."""
        late = []
        while self._by_deadline and (self._by_deadline[0][0] <= now or not self._by_deadline[0][2].waits):
            waiting = heappop(self._by_deadline)[2]
            if waiting.waits:
                self.leave(waiting)
                late.append(waiting)
        return late

    def _enter(self, waiting: Waiting[Item]) -> None:
        waiting.waits = True
        insort(self._order, waiting, key=_key)
        heappush(self._by_deadline, (waiting.leave_at, waiting.number, waiting))
        self._bytes += waiting.size_bytes
        share = (waiting.priority, waiting.tenant)
        self._counts[share] = self._counts.get(share, 0) + 1

    def _forget_who_left(self) -> None:
        """Let go of them and of all that hangs on them; done so that it costs each one of them next to nothing."""
        self._by_deadline = [entry for entry in self._by_deadline if entry[2].waits]
        heapify(self._by_deadline)

    def _victim(self, tenant: str, priority: int) -> Waiting[Item] | None:
        """The last one of the tenant with the most of the lowest priority; None where the newcomer comes behind it."""
        if not self._order or self._order[-1].priority > priority:
            return None
        lowest = self._order[-1].priority
        count, heaviest = max((count, name) for (level, name), count in self._counts.items() if level == lowest)
        if lowest == priority and count <= self._counts.get((priority, tenant), 0) + 1:
            return None
        return next(one for one in reversed(self._order) if one.tenant == heaviest and one.priority == lowest)


def give_up_at(now: float, deadline_at: float) -> float:
    """How long (s, the clock of `now`) a request with this deadline may wait for room."""
    return min(deadline_at, now + MAX_WAIT_S)


def retry_after_s(wait_s: float) -> float:
    """When a refused client should come again: when half of what makes it too long has drained.

    Args:
        wait_s: how long one more request would wait now.
    """
    return max(MIN_RETRY_S, min(wait_s - MAX_WAIT_S / 2, 6 * MAX_WAIT_S))


def come_again_in_s(wait_s: float, rng: Random) -> int:
    """What a refused client is told, in whole seconds: no sooner than is of use, and not with all the others.

    Those who are refused together would come back together, and be refused again; so they are spread evenly over half
    as long again.

    Args:
        wait_s: when to come again at the earliest.
    """
    earliest_s = ceil(max(MIN_RETRY_S, wait_s))
    return earliest_s + rng.randrange(max(MIN_SPREAD_S, ceil(earliest_s / 2)) + 1)
