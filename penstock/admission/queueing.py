"""Late binding: a request without a free slot waits in the agent, bound to no endpoint, and is sent to the first slot
that becomes free.

Places with a higher priority are served first; within a priority, the place that was taken first. A tenant's places are
assigned to its requests in the order of their urgency (`queue_order`), so that a short deadline or little work affects
only the order within the tenant. The queue is bounded in requests and bytes. A full queue displaces a request of the
tenant that uses most of the exhausted resource. A request that would time out before its turn is refused at once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from math import ceil, inf
from operator import attrgetter
from random import Random
from typing import Generic, NamedTuple, TypeVar

from penstock.admission.tenant_shares import Share, TenantShares
from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S, Queueing

Item = TypeVar("Item")

CREDIT_WAIT_S = 1.0
"""Maximum wait (s) for a credit of an idle region if the wait at home is too long: a few rounds of the probes that
request the credit."""

MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Maximum size (bytes) of the bodies that wait for one model."""

MIN_RETRY_S = 1.0
"""Minimum Retry-After (s); also used if the time to retry is unknown."""

MAX_RETRY_S = 120.0
"""Maximum Retry-After (s), before the retries are spread."""

MIN_SPREAD_S = 2
"""Minimum interval (s) over which the retries of clients that were refused together are spread."""

_urgency = attrgetter("urgency")
_size = attrgetter("size_bytes")


class Place(NamedTuple):
    """A position in the queue, which a request takes when it joins. The smallest is served first."""

    behind: int
    """Negated priority of the request."""
    arrived_at: float
    """Arrival time (s) of the request that took the place."""
    number: int
    """Number of the place, counted from 1 over all places of this queue."""


class QueuedRequest(Generic[Item]):
    """One request in the queue."""

    __slots__ = ("item", "leave_at", "number", "share", "since", "size_bytes", "urgency", "waits")

    def __init__(
        self, item: Item, share: Share, size_bytes: int, since: float, urgency_at: float, leave_at: float, number: int
    ) -> None:
        """Create a request; only `Queue.join` calls this."""
        self.item = item
        self.share = share
        self.size_bytes = size_bytes
        self.since = since
        self.leave_at = leave_at
        self.number = number
        """Number of the place that the request took when it joined."""
        self.urgency = (urgency_at, number)
        """Sort key among the requests of the same share."""
        self.waits = True
        """Whether the request is still in the queue."""


class ShareQueue(Generic[Item]):
    """The requests of one share by urgency, and their places in order; a request has the place at its own index."""

    __slots__ = ("places", "requests")

    def __init__(self) -> None:
        self.requests: list[QueuedRequest[Item]] = []
        self.places: list[Place] = []

    def add(self, request: QueuedRequest[Item], place: Place) -> None:
        """Add a request and a place; another request of the share may receive the place."""
        insort(self.requests, request, key=_urgency)
        insort(self.places, place)

    def remove(self, request: QueuedRequest[Item]) -> Place:
        """Remove a request and its current place, and return the place; all other requests keep their places."""
        index = bisect_left(self.requests, request.urgency, key=_urgency)
        del self.requests[index]
        return self.places.pop(index)

    def request_at(self, place: Place) -> QueuedRequest[Item]:
        """Return the request that has a place of this share."""
        return self.requests[bisect_left(self.places, place)]

    def place_of_next(self, urgency_at: float, place: Place) -> Place:
        """Return the place that a new request of this urgency (s) would have after it took `place`."""
        index = bisect_left(self.requests, (urgency_at, place.number), key=_urgency)
        own = bisect_left(self.places, place)
        return place if index == own else self.places[index if index < own else index - 1]


class Queue(Generic[Item]):
    """Requests for one model that wait for a free slot, in the order of service."""

    def __init__(self, max_length: int = Queueing().max_length, max_bytes: int = MAX_WAITING_BYTES) -> None:
        """Create an empty queue."""
        self.max_length = max_length
        """Maximum number of requests; a lower one takes effect when the next request joins."""
        self._max_bytes = max_bytes
        self._places: list[Place] = []
        self._share_of_place: dict[int, Share] = {}
        self._by_share: dict[Share, ShareQueue[Item]] = {}
        self._by_deadline: list[tuple[float, int, QueuedRequest[Item]]] = []
        self._counts = TenantShares()
        self._bytes = TenantShares()
        self._number = 0

    def __len__(self) -> int:
        return len(self._places)

    def join(
        self,
        item: Item,
        tenant: str,
        priority: int,
        size_bytes: int,
        now: float,
        give_up_at: float,
        *,
        urgency_at: float | None = None,
        leave_at: float = inf,
        arrived_at: float | None = None,
    ) -> tuple[QueuedRequest[Item] | None, list[QueuedRequest[Item]]]:
        """Add a request if the queue's bounds permit it.

        Args:
            size_bytes: memory that the body of the request holds.
            give_up_at: deadline (s, the clock of `now`).
            urgency_at: order within the tenant, see `queue_order`; None is `give_up_at`.
            leave_at: an earlier time (s) at which the request leaves the queue, which does not affect the order.
            arrived_at: arrival time (s) of the request, which determines the place; None is `now`.

        Returns:
            the queued request, None if it is refused; and the requests that were displaced for it.
        """
        if size_bytes > self._max_bytes:
            return None, []
        share = Share(priority, tenant)
        displaced: list[tuple[QueuedRequest[Item], Place]] = []
        while (short := self._short(size_bytes)) is not None:
            heaviest = short.displaced_by(share, size_bytes if short is self._bytes else 1)
            if heaviest is None:
                for victim, place in displaced:
                    self._enter(victim, place)
                return None, []
            victim = self._victim(heaviest, short)
            displaced.append((victim, self._remove(victim)))
        self._number += 1
        request = QueuedRequest(
            item,
            share,
            size_bytes,
            now,
            give_up_at if urgency_at is None else urgency_at,
            min(give_up_at, leave_at),
            self._number,
        )
        self._enter(request, Place(-priority, now if arrived_at is None else arrived_at, self._number))
        return request, [victim for victim, _ in displaced]

    def leave(self, request: QueuedRequest[Item]) -> None:
        """Remove a request that was dispatched, cancelled, or timed out. A second call does nothing."""
        if request.waits:
            self._remove(request)

    def places(self) -> list[Place]:
        """Return all places in order, as a copy that later changes do not affect."""
        return self._places[:]

    def request_at(self, place: Place) -> QueuedRequest[Item] | None:
        """Return the request that currently has a place; None if the place was removed."""
        share = self._share_of_place.get(place.number)
        return None if share is None else self._by_share[share].request_at(place)

    def in_order(self) -> list[QueuedRequest[Item]]:
        """Return all requests in order."""
        return [request for place in self._places if (request := self.request_at(place)) is not None]

    def head(self) -> Place | None:
        """Return the first place; None for an empty queue."""
        return self._places[0] if self._places else None

    def precedes(self, priority: int, arrived_at: float) -> bool:
        """Whether a request outside of the queue, with this arrival time (s), precedes all queued requests."""
        return not self._places or (-priority, arrived_at, self._number + 1) < self._places[0]

    def ahead_of(self, tenant: str, priority: int, arrived_at: float, urgency_at: float) -> int:
        """Return the number of requests that precede a request that joins now. Arguments as of `join`."""
        place = Place(-priority, arrived_at, self._number + 1)
        own = self._by_share.get(Share(priority, tenant))
        return bisect_left(self._places, place if own is None else own.place_of_next(urgency_at, place))

    def give_up(self, now: float) -> list[QueuedRequest[Item]]:
        """Remove and return the requests whose maximum wait has expired."""
        late = []
        while self._by_deadline and (self._by_deadline[0][0] <= now or not self._by_deadline[0][2].waits):
            request = heappop(self._by_deadline)[2]
            if request.waits:
                self._remove(request)
                late.append(request)
        return late

    def _enter(self, request: QueuedRequest[Item], place: Place) -> None:
        request.waits = True
        insort(self._places, place)
        self._share_of_place[place.number] = share = request.share
        self._by_share.setdefault(share, ShareQueue()).add(request, place)
        heappush(self._by_deadline, (request.leave_at, request.number, request))
        self._counts.add(share, 1)
        self._bytes.add(share, request.size_bytes)

    def _remove(self, request: QueuedRequest[Item]) -> Place:
        request.waits = False
        share = request.share
        own = self._by_share[share]
        place = own.remove(request)
        if not own.requests:
            del self._by_share[share]
        del self._places[bisect_left(self._places, place)], self._share_of_place[place.number]
        self._counts.remove(share, 1)
        self._bytes.remove(share, request.size_bytes)
        if len(self._by_deadline) > 2 * len(self._places):
            self._compact_deadlines()
        return place

    def _compact_deadlines(self) -> None:
        """Remove the entries of requests that left the queue, which bounds the memory at a low amortised cost."""
        self._by_deadline = [entry for entry in self._by_deadline if entry[2].waits]
        heapify(self._by_deadline)

    def _short(self, size_bytes: int) -> TenantShares | None:
        """Return the resource that does not suffice for one more request; None if both resources suffice."""
        if self._bytes.total + size_bytes > self._max_bytes:
            return self._bytes
        return self._counts if len(self._places) >= self.max_length else None

    def _victim(self, share: Share, short: TenantShares) -> QueuedRequest[Item]:
        """Return the request of a share to displace: the last request, or the largest request if bytes are short."""
        requests = self._by_share[share].requests
        return max(reversed(requests), key=_size) if short is self._bytes else requests[-1]


def give_up_at(now: float, deadline_at: float, max_wait_s: float) -> float:
    """Return the time (s, the clock of `now`) until which a request may wait, at most `max_wait_s` from now."""
    return min(deadline_at, now + max_wait_s)


def retry_after_s(wait_s: float, max_wait_s: float = DEFAULT_MAX_WAIT_S) -> float:
    """Return the time (s) after which a refused client should retry: when the wait has fallen to half of the maximum.

    The result is between MIN_RETRY_S and MAX_RETRY_S.

    Args:
        wait_s: present wait (s) of one more request.
        max_wait_s: maximum wait (s) of a request.
    """
    return max(MIN_RETRY_S, min(wait_s - max_wait_s / 2, MAX_RETRY_S))


def spread_retry_after_s(wait_s: float, rng: Random) -> int:
    """Return the Retry-After of a refused client, in whole seconds, spread at random.

    Clients that are refused together would retry together and be refused again, so their retries are spread evenly over
    an interval of half of `wait_s`, at least MIN_SPREAD_S.

    Args:
        wait_s: minimum time until the retry, in seconds.
    """
    earliest_s = ceil(max(MIN_RETRY_S, wait_s))
    return earliest_s + rng.randrange(max(MIN_SPREAD_S, ceil(earliest_s / 2)) + 1)
