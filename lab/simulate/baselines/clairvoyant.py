"""The clairvoyant bound: one queue for all engines, with the exact engine states and the true work of each request.

An engine receives only as many requests as it has slots, so that requests are assigned late. For quantiles, neither the
optimal order nor the optimal assignment to engines of unequal speed is known. The bound of a metric is therefore the
best of several orders, each with the fastest free engine. It is a reference and not a proven optimum.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Generic

from lab.simulate.fleets import Request
from lab.simulate.region import Region, Served

Order = Callable[[float, float], float]
"""Returns the rank of a request from its arrival (s) and its true work (s); the lowest rank is served first."""


def by_arrival(at: float, work_s: float) -> float:
    """First come, first served."""
    return at


def shortest_first(at: float, work_s: float) -> float:
    """Shortest true work first."""
    return work_s


def shortest_with_age(at: float, work_s: float) -> float:
    """Shortest true work first; a request is overtaken only by requests that arrive within its work time."""
    return at + work_s


def longest_with_age(at: float, work_s: float) -> float:
    """Earliest latest start first, if all responses have the same deadline after arrival."""
    return at - work_s


ORDERS: dict[str, Order] = {
    "by arrival": by_arrival,
    "shortest first": shortest_first,
    "shortest first with age": shortest_with_age,
    "longest first with age": longest_with_age,
}


class CentralQueue(Generic[Request]):
    """One queue for all agents of a region."""

    def __init__(self, region: Region[Request], order: Order) -> None:
        """Create an empty queue."""
        self._region: Region[Request] = region
        self._order = order
        self._waiting: list[tuple[float, float, Served[Request]]] = []

    def arrive(self, served: Served[Request]) -> None:
        """Receive a request of any agent."""
        work_s = self._region.fleet.true_work_s(served.request, 0)
        entry = (self._order(served.request.at_s, work_s), served.request.at_s, served)
        insort(self._waiting, entry, key=_rank)
        self._serve()

    def notified(self, delay_s: float) -> None:
        """As `Agent.notified`; the central queue ignores notifications."""

    def _serve(self) -> None:
        kinds, in_flight = self._region.fleet.kinds, self._region.in_flight
        while self._waiting:
            free = [index for index, kind in enumerate(kinds) if in_flight[index] < kind.max_num_seqs]
            if not free:
                return
            served = self._waiting.pop(0)[2]
            best = min(free, key=lambda index: (in_flight[index] / kinds[index].max_num_seqs, -kinds[index].speed))
            self._region.send(best, served, None, self._serve)


def _rank(entry: tuple[float, float, object]) -> tuple[float, float]:
    return entry[:2]
