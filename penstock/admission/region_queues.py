"""The admission queues of a region's models: those of this agent, and what the other agents report of theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from math import inf
from typing import Any, Final, Generic

from penstock.admission.model_queue import ModelQueue, QueueHead, remote_head
from penstock.admission.queue_position import queue_positions
from penstock.admission.region_work import RegionWork
from penstock.admission.tenant_order import Item
from penstock.fleet.expected_wait import expected_wait_s
from penstock.fleet.report import TenantReport
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.pools.context_lengths import NO_ENDPOINTS
from penstock.pools.pool_accounting import PoolAccount

MARGIN_S: Final = 0.2
"""Part (s) of a request's longest wait that preempting a batch request for it may take: two periods of the queues'
timer."""


class RegionQueues(Generic[Item]):
    """What waits in a region, and how long one more request would wait."""

    def __init__(self, work: RegionWork, group_of: Callable[[Item], str], numbers_from: int) -> None:
        """Create empty queues.

        Args:
            work: the work that tenants receive, and what waits at the other agents.
            group_of: returns the group of a request, see `ModelQueue`.
            numbers_from: added to the numbers of the requests that wait here, so that they are unique in the region.
        """
        self.here: dict[str, ModelQueue[Item]] = {}
        """The queues of this agent, by model."""
        self.restricted: dict[str, Counter[frozenset[str]]] = {}
        """By model, the waiting requests with a priority that not every endpoint can serve, by those that cannot."""
        self.preemptible: Callable[[str, Container[str]], int] = lambda model, excluded: 0
        """Returns how many running batch requests of the region may end for requests for a model, without those at the
        excluded endpoints."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when room appeared while requests wait."""
        self._work = work
        self._group_of = group_of
        self._numbers_from = numbers_from

    def of(self, model: str) -> ModelQueue[Item]:
        """Return this agent's queue for a model; created if there is none."""
        queue = self.here.get(model)
        if queue is None:
            queue = self.here[model] = ModelQueue(
                numbers_from=self._numbers_from, group_of=self._group_of, counters=self._work.of(model)
            )
        return queue

    def is_awaited(self, model: str) -> bool:
        """Whether a request for a model waits at some agent of the region."""
        return bool(self.here.get(model) or self._work.remote_queues.get(model))

    def waiting(self, model: str) -> int:
        """Requests for a model that wait for their turn at the agents of the region; batch requests do not count."""
        queue, remote = self.here.get(model), self._work.remote_queues.get(model)
        here = queue.length_without_batch() if queue else 0
        return here + sum(queue.requests for queue in remote) if remote else here

    def waiting_here(self, model: str) -> int:
        """Requests for a model that wait at this agent."""
        queue = self.here.get(model)
        return len(queue) if queue is not None else 0

    def batch_waiting_here(self, model: str) -> int:
        """Batch requests for a model that wait at this agent."""
        queue = self.here.get(model)
        return len(queue) - queue.length_without_batch() if queue else 0

    def higher_waits(self, model: str, priority: int) -> bool:
        """Whether a request of a higher priority than `priority` waits at an agent of the region."""
        queue = self.here.get(model)
        if queue and queue.highest() > priority:
            return True
        remote = self._work.remote_queues.get(model)
        return any(-each.behind > priority for each in remote) if remote else False

    def patient(self, model: str, patience_s: float, now: float) -> int:
        """Requests with a priority for a model that have waited at this agent for a time (s), or cannot wait for it."""
        queue = self.here.get(model)
        if not queue:
            return 0
        return sum(
            now - entry.arrived_at >= patience_s or entry.leave_at - entry.arrived_at <= patience_s + MARGIN_S
            for _, own in queue.tenants_in_order()
            for entry in own.requests
            if entry.priority != BATCH_PRIORITY
        )

    def tenants(self) -> Iterator[TenantReport]:
        """Yield the running and the waiting requests of each tenant at this agent, in parts."""
        for tenant, running in self._work.running():
            yield TenantReport(tenant, running, 0)
        for queue in self.here.values():
            for _, own in queue.tenants_in_order():
                yield TenantReport(own.tenant, 0, len(own.requests))

    def other_heads(self, model: str) -> Sequence[QueueHead]:
        """Return the heads of the queues that the other agents report for a model, by this agent's clock."""
        remote = self._work.remote_queues.get(model)
        if not remote:
            return ()
        counters = self._work.of(model)
        return [remote_head(counters, each.behind, each.tenant, each.since, each.which) for each in remote]

    def must_queue(self, model: str, priority: int, arrived_at: float) -> bool:
        """Whether a request that waits at an agent of the region precedes one that arrived at `arrived_at` (s)."""
        return self.is_awaited(model) and self.of(model).must_queue(priority, arrived_at, self.other_heads(model))

    def wait_s(self, model: str, pool: PoolAccount[Any], without: frozenset[str] = NO_ENDPOINTS) -> float:
        """Return the time (s) that one more request for a model would wait.

        Args:
            without: names of endpoints that cannot serve the request; inf if there are no others.
        """
        return self.wait_behind_s(model, pool, without, self.waiting(model), preempts=True)

    def wait_behind_s(
        self, model: str, pool: PoolAccount[Any], unable: frozenset[str], ahead: int, *, preempts: bool
    ) -> float:
        """Return the time (s) until a request behind `ahead` waiting ones starts at an endpoint that can serve it.

        Args:
            preempts: whether running batch requests end for it.
        """
        restricted = self.restricted.get(model)
        if not unable and not restricted:
            load = pool.in_flight + ahead
            if preempts and load >= pool.slots:
                load -= self.preemptible(model, NO_ENDPOINTS)
            return expected_wait_s(load, pool.slots, pool.service_s)
        wait_s = inf
        for position in queue_positions(pool.positions.keys(), unable, restricted or {}, ahead):
            slots, in_flight, service_s = pool.load_without(position.without)
            load = in_flight + position.ahead
            if preempts and load >= slots:
                load -= self.preemptible(model, position.without)
            wait_s = min(wait_s, expected_wait_s(load, slots, service_s))
        return wait_s

    def room_appeared(self) -> None:
        """Report that a slot has been released."""
        if any(self.here.values()):
            self.on_room()

    def restrict(self, model: str, unable: frozenset[str]) -> None:
        """Count a request with a priority that joins the queue and that these endpoints cannot serve."""
        if unable:
            self.restricted.setdefault(model, Counter())[unable] += 1

    def lift(self, model: str, unable: frozenset[str]) -> None:
        """Count a request out that `restrict` counted."""
        if unable:
            restricted = self.restricted[model]
            restricted[unable] -= 1
            if not restricted[unable]:
                del restricted[unable]
