"""The order of the waiting requests of one priority: among tenants, and within a tenant.

Among tenants it is fair: the tenant that has received the least work is first, in seconds divided by the tenant's
weight (`work_counters`; start-time fair queueing: Goyal et al., SIGCOMM 1996). Of two tenants with backlog, one is
ahead of the other by at most the largest work of one request of each. A tenant that joins starts where the others are,
so that an idle tenant saves up nothing, and a tenant that left and joins again keeps what it received.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from operator import attrgetter
from typing import Generic, TypeVar

from penstock.admission.work_counters import TenantCounter, WorkCounters
from penstock.policy.kinds.models import Queueing, QueueOrder

Item = TypeVar("Item")

_urgency = attrgetter("urgency")
_size = attrgetter("size_bytes")


@dataclass(slots=True, eq=False)
class QueuedRequest(Generic[Item]):
    """One request in the queue. Times are in seconds, by the clock of the queue's owner."""

    item: Item
    tenant: str
    priority: int
    size_bytes: int
    """Memory that the body of the request holds."""
    arrived_at: float
    """Arrival of the request, which determines the agent's turn."""
    urgency_at: float
    """Order within the tenant: the smallest is served first."""
    leave_at: float
    """Time at which the request leaves the queue without a target."""
    cost_s: float = 0.0
    """Estimated work, which counts towards the tenant's share."""
    weight: float = 1.0
    """Weight of the tenant: tenants with backlog receive work in proportion to their weights."""
    rests_until: float = 0.0
    """The request is offered to no target before this time."""
    represents_group: bool = True
    """Whether the absence of a target for this request implies that its group has none."""
    since: float = 0.0
    """Time at which the request joined the queue."""
    waits: bool = False
    """Whether the request is in the queue."""
    urgency: tuple[float, int] = field(default=(0.0, 0), init=False)
    """`urgency_at`, and the number of the request, counted from 1 over all requests of the queue."""


class TenantQueue(Generic[Item]):
    """The requests of one tenant and priority by urgency, and their places by arrival.

    A request has the place at its own index: an urgent request takes the tenant's earliest place and leaves its own to
    the others, so that deadlines do not change the turn of the agent.
    """

    __slots__ = ("cost_s", "counter", "places", "requests", "size_bytes", "tenant")

    def __init__(self, counter: TenantCounter) -> None:
        self.tenant = counter.tenant
        self.counter = counter
        self.requests: list[QueuedRequest[Item]] = []
        self.places: list[tuple[float, int]] = []
        """Arrival time (s) and number of each place."""
        self.size_bytes = 0
        self.cost_s = 0.0

    def add(self, request: QueuedRequest[Item], place: tuple[float, int]) -> None:
        """Add a request and a place; another request may receive the place."""
        insort(self.requests, request, key=_urgency)
        insort(self.places, place)
        self.size_bytes += request.size_bytes
        self.cost_s += request.cost_s

    def remove(self, request: QueuedRequest[Item]) -> tuple[float, int]:
        """Remove a request and return its place; all other requests keep their places."""
        index = bisect_left(self.requests, request.urgency, key=_urgency)
        del self.requests[index]
        self.size_bytes -= request.size_bytes
        self.cost_s -= request.cost_s
        return self.places.pop(index)

    def place_of(self, request: QueuedRequest[Item]) -> tuple[float, int]:
        """Return the place that a request has now."""
        return self.places[bisect_left(self.requests, request.urgency, key=_urgency)]

    def uses(self, *, of_bytes: bool) -> int:
        """Return the number of its requests, or of their bytes."""
        return self.size_bytes if of_bytes else len(self.requests)

    def mean_work_s(self) -> float:
        """Return the mean work (s, for the weight) of its requests; only called while it has some."""
        return self.cost_s / self.counter.weight / len(self.requests)

    def turn(self) -> tuple[float, tuple[float, int]]:
        """Sort key among the tenants of the priority: the least work received, then the earliest place."""
        return self.counter.received_s, self.places[0]


class PriorityLevel(Generic[Item]):
    """The tenants that wait with one priority."""

    __slots__ = ("counters", "tenants")

    def __init__(self, counters: WorkCounters) -> None:
        self.tenants: dict[str, TenantQueue[Item]] = {}
        self.counters = counters

    def tenant(self, request: QueuedRequest[Item]) -> TenantQueue[Item]:
        """Return the queue of the tenant of a request."""
        own = self.tenants.get(request.tenant)
        if own is None:
            own = TenantQueue(self.counters.join(request.tenant, request.weight))
            self.tenants[request.tenant] = own
        return own

    def in_order(self) -> Iterator[QueuedRequest[Item]]:
        """Yield the requests in order; see `ModelQueue.in_order`."""
        tenants = list(self.tenants.values())
        heap = [(own.turn(), number, own, iter(own.requests[:])) for number, own in enumerate(tenants)]
        heapify(heap)
        while heap:
            _, number, own, requests = heappop(heap)
            request = next((each for each in requests if each.waits), None)
            if request is not None:
                yield request
                if own.requests:
                    heappush(heap, (own.turn(), number, own, requests))

    def ahead_of(self, request: QueuedRequest[Item]) -> int:
        """Return the number of requests of this priority that would start before a request that joins now.

        It is an estimate: the requests of another tenant count with their mean work.
        """
        own = self.tenants.get(request.tenant)
        ahead, starts_s = 0, self.counters.received_s(request.tenant)
        if own is not None:
            ahead = bisect_left(own.requests, (request.urgency_at, inf), key=_urgency)
            starts_s += ahead * own.mean_work_s()
        for other in self.tenants.values():
            received_s = other.counter.received_s
            if other is not own and received_s <= starts_s:
                mean_s = other.mean_work_s()
                turns = 1 + int((starts_s - received_s) / mean_s) if mean_s > 0.0 else len(other.requests)
                ahead += min(len(other.requests), turns)
        return ahead

    def displaced_by(self, newcomer: QueuedRequest[Item], *, of_bytes: bool) -> QueuedRequest[Item] | None:
        """Return the request that the tenant that uses most gives up: its last, or its largest if bytes are short.

        None for a new request of this priority whose tenant would not use less afterwards.
        """
        heaviest = max(self.tenants.values(), key=lambda each: (each.uses(of_bytes=of_bytes), each.tenant))
        requests = heaviest.requests
        if requests[0].priority == newcomer.priority:
            own = self.tenants.get(newcomer.tenant)
            uses = 0 if own is None else own.uses(of_bytes=of_bytes)
            if heaviest.uses(of_bytes=of_bytes) <= uses + (newcomer.size_bytes if of_bytes else 1):
                return None
        return max(reversed(requests), key=_size) if of_bytes else requests[-1]

    def forget(self, own: TenantQueue[Item]) -> None:
        """Remove a tenant without requests."""
        del self.tenants[own.tenant]
        self.counters.leave(own.counter)


def urgency_at(queueing: Queueing, arrived_at: float, give_up_at: float, work_s: float, usual_s: float) -> float:
    """Return the time (s, the clock of `arrived_at`) by which a tenant's requests are ordered.

    Shortest first minimises the mean wait (Smith, "Various optimizers for single-stage production", 1956), and starves
    long requests under load. In this order, work only postpones a request, by at most `max_overtaken_s`: if both
    requests may wait equally long, a request that arrives more than that time later does not overtake. The postponement
    is `max_overtaken_s` times work / (work + usual work), so that it depends little on the scale of the estimates
    (docs/bench.md has figures).

    Args:
        arrived_at: arrival time of the request.
        give_up_at: time until which the request may wait.
        work_s: expected work of the request.
        usual_s: expected work of a usual request for the model.
    """
    if queueing.order is QueueOrder.ARRIVAL:
        return arrived_at
    if queueing.order is QueueOrder.DEADLINE or work_s <= 0.0:
        return give_up_at
    return give_up_at + queueing.max_overtaken_s * work_s / (work_s + usual_s)
