"""Dispatches the requests of the agent's admission queues, one queue for each model, to targets that have room.

A pass over a queue follows every event that makes room: the end of a request, a report of less load or of another queue
by an agent of the region, and a new spill credit. The timer, which runs only while requests wait, finds room that no
event announces, such as an endpoint that became ready, and requests whose queue timeout has expired.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from math import ceil, inf
from typing import TYPE_CHECKING, Final

from penstock.admission.model_queue import ModelQueue, NextReason, Pass, QueueHead
from penstock.admission.queue_explanation import QueueExplanation, explain_queue
from penstock.admission.region_queues import RegionQueues
from penstock.admission.retry_after import MIN_RETRY_S, retry_after_s
from penstock.policy.kinds.models import WAIT_SERVICE_TIMES
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.spill_credits import AgentRank, shared_headroom
from regional_agent.routing.forwarded_attempt import ForwardedAttempt
from regional_agent.routing.queue_entry import QueueEntry, Waiter, entry_of, group_of
from regional_agent.routing.running_batch_requests import RunningBatchRequests
from regional_agent.shared_load.published_load import MAX_WAITED_MS, QueueSummary
from regional_agent.telemetry.label_values import QueueOutcome

if TYPE_CHECKING:
    from regional_agent.endpoints.endpoint_set import EndpointSet
    from regional_agent.requests.request_context import RequestContext
    from regional_agent.shared_load.shared_load import SharedLoad

POLL_S: Final = 0.1
"""Period (s) of the timer."""

YIELD_S = 0.06
"""Time (s) for which an agent leaves a free slot to another agent, which detects it within about 20 ms; its use is seen
after 20 ms more. Not Final: mypyc would copy the value into the code, where tests cannot change it."""

MAX_AT_ONCE: Final = 256
"""Number of requests that one pass dispatches; the next pass dispatches the remaining requests."""

CREDIT_WAIT_S: Final = 1.0
"""Maximum wait (s) for a credit of an idle region if the wait at home is too long: a few rounds of the probes that
request the credit."""

_WHOLE_REGION: Final = AgentRank(0, 1)


class QueueDispatcher:
    """The admission queues of one agent, by model."""

    def __init__(
        self,
        endpoints: EndpointSet,
        shared_load: SharedLoad,
        clock: Callable[[], float],
        on_waited: Callable[[str, float, QueueOutcome, int], None] = lambda model, waited_s, outcome, priority: None,
        on_displaced: Callable[[int, int], None] = lambda priority, by: None,
        on_preempted: Callable[[], None] = lambda: None,
    ) -> None:
        """Create empty queues.

        Args:
            clock: monotonic, in seconds.
            on_waited: called with model, time waited (s), outcome and priority when a request leaves a queue.
            on_displaced: called with the priorities of a displaced request and of the new one.
            on_preempted: called for each running batch request that ends for another one.
        """
        self._endpoints = endpoints
        self._shared_load = shared_load
        self._clock = clock
        self._on_waited = on_waited
        self._on_displaced = on_displaced
        self._work = shared_load.work
        numbers_from = int.from_bytes(os.urandom(4)) << 20
        self.queues: RegionQueues[Waiter] = RegionQueues(shared_load.work, group_of, numbers_from)
        """What waits in the region."""
        self.batch_requests = RunningBatchRequests(endpoints, shared_load, self.queues, on_preempted)
        """The batch requests of this agent that run in this region."""
        self.queues.preemptible, self.queues.on_room = self.batch_requests.preemptible, self.room_appeared
        self._timer: asyncio.TimerHandle | None = None
        self._yielding: dict[str, asyncio.TimerHandle] = {}
        self._pass_scheduled = False
        self._elsewhere = False
        self.promised: Callable[[str], int] = lambda model: 0
        """Returns the slots that this agent has promised to other regions for requests with a priority for a model."""

    def idle_slots(self, model: str, max_use: float, *, preempts: bool = False) -> int:
        """The slots of a model that batch requests may use now: none while a request with a priority waits, and none
        that waiting requests or promises of models that share them may need.

        Args:
            max_use: part (0-1] of the slots up to which batch requests start.
            preempts: whether running batch requests end for others, so that promises need no idle slots.
        """
        if self.queues.higher_waits(model, BATCH_PRIORITY):
            return 0
        pool, coupled = self._endpoints.pools[model], self._endpoints.groups.coupled(model)
        promised = 0 if preempts else self.promised(model)
        idle = max(0, ceil(max_use * pool.slots) - pool.in_flight - promised)
        if not idle or not coupled:
            return idle
        loads = self._endpoints.groups.loads(coupled, self._endpoints.pools)
        waiting = {name: self.queues.waiting(name) for name in coupled}
        promises = {name: self.promised(name) for name in coupled}
        return min(idle, shared_headroom(model, loads, waiting, promises, 1.0, _WHOLE_REGION))

    def is_shared(self, context: RequestContext, now: float) -> bool:
        """Whether tenants besides that of a request use its model at `now` (s)."""
        return self._work.of(context.model).is_shared(context.estimate.tenant, now)

    def must_queue(self, context: RequestContext) -> bool:
        """Whether a request that waits at an agent of the region precedes the request of `context`, which waits for a
        slot if it occupies one."""
        return context.occupies_slot and self.queues.must_queue(context.model, context.priority, context.received_at)

    def join(self, waiter: Waiter, size_bytes: int, now: float, *, elsewhere: bool = False) -> QueueEntry | Refusal:
        """Add a request to the queue of its model, unless it would wait too long.

        Args:
            waiter: its functions are not called within this call.
            size_bytes: memory that the request's body holds.
            elsewhere: another region is likely to grant a credit soon, so a request whose wait here is too long still
                waits for up to CREDIT_WAIT_S.
        """
        context, unable = waiter.context, waiter.unable
        model = context.model
        pool, max_wait_s = self._endpoints.pools[model], context.max_wait_s
        queue, known = self.queues.of(model), context.policy.models.get(model)
        if known is not None:
            queue.use(known.queueing)
            if known.wait_follows_service and context.route_context is None and pool.slots:
                max_wait_s = max(max_wait_s, WAIT_SERVICE_TIMES * pool.service_s * pool.ready / pool.slots)
        entry = entry_of(waiter, size_bytes, max_wait_s)
        ahead = queue.ahead_of(entry) + self.queues.waiting(model) - queue.length_without_batch()
        # Without a ready endpoint, when one becomes ready is unknown.
        is_batch = context.is_batch
        wait_s = self.queues.wait_behind_s(model, pool, unable, ahead, preempts=not is_batch) if pool.ready else 0.0
        if wait_s == inf:
            wait_s = 0.0
        if pool.knows_service and now + wait_s > entry.leave_at:
            if not elsewhere:
                has_waited = f"the request arrived {now - context.received_at:.0f} s ago, and "
                expected = f"the expected wait is {wait_s:.0f} s, which is too long"
                return _refusal(has_waited + expected if context.attempts else expected, wait_s)
            entry.leave_at = min(entry.leave_at, now + CREDIT_WAIT_S)
        displaced = queue.join(entry, now)
        if displaced is None:
            return _refusal("the queue is full", wait_s)
        for victim in displaced:
            self._on_displaced(victim.priority, entry.priority)
            self._left(victim, now, QueueOutcome.ABANDONED)
            refusal = _refusal("the queue is full and other requests have precedence", wait_s)
            asyncio.get_running_loop().call_soon(victim.item.on_target, refusal)
        if not is_batch:
            self.queues.restrict(model, unable)
        self._shared_load.publish()
        self._set_timer()
        if pool.has_room:
            self.room_appeared()
        elif not is_batch:
            self.batch_requests.make_room(model, queue.length_without_batch(), now)
        return entry

    def leave(self, entry: QueueEntry) -> None:
        """Remove a request whose client has disconnected or whose deadline has passed."""
        if entry.waits:
            self.queues.here[entry.item.context.model].leave(entry)
            self._left(entry, self._clock(), QueueOutcome.ABANDONED)
            self._shared_load.publish()

    def room_appeared(self) -> None:
        """Schedule one pass over the queues, for all events until it runs."""
        if self.queues.here and not self._pass_scheduled and any(self.queues.here.values()):
            self._pass_scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch_all)

    def others_changed(self) -> None:
        """Serve what waits at any agent of the region, after the load or a queue of another one has changed."""
        self.room_appeared()
        for model in self._work.remote_queues:
            if not self._endpoints.pools[model].has_room:
                queue = self.queues.here.get(model)
                self.batch_requests.make_room(model, queue.length_without_batch() if queue else 0, self._clock())

    def credit_arrived(self) -> None:
        """Schedule a pass in which requests may leave the region. Queued requests precede new requests."""
        self._elsewhere = True
        self.room_appeared()

    def close(self) -> None:
        """Stop all timers. Requests that still wait leave when their connections are closed."""
        self._pass_scheduled = True
        for timer in (self._timer, *self._yielding.values()):
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._yielding.clear()

    def summaries(self) -> dict[str, QueueSummary]:
        """The state of the queues, for the other agents of the region."""
        now = self._clock()
        waiting = {}
        for model, queue in self.queues.here.items():
            head = queue.head(now, self.queues.other_heads(model)) if queue else None
            if head is not None:
                waited_ms = min(MAX_WAITED_MS, max(0, int((now - head.since) * 1000)))
                waiting[model] = QueueSummary(
                    queue.length_without_batch(), head.behind, waited_ms, head.which, head.tenant
                )
        return waiting

    def explain(self, model: str) -> QueueExplanation | None:
        """Explain the queue of a model; None if no request for it waits at this agent."""
        queue, now = self.queues.here.get(model), self._clock()
        if not queue:
            return None
        has_room = self._endpoints.pools[model].has_room
        return explain_queue(queue, self.queues.other_heads(model), now, has_room=has_room)

    def _dispatch_all(self) -> None:
        elsewhere, self._elsewhere = self._elsewhere, False
        self._pass_scheduled = False
        for model, queue in list(self.queues.here.items()):
            if queue:
                self._dispatch(model, queue, elsewhere=elsewhere)

    def _dispatch(self, model: str, queue: ModelQueue[Waiter], *, elsewhere: bool) -> None:
        """Send waiting requests to targets, in order."""
        now = self._clock()
        offers = Pass(queue, self.queues.other_heads(model), now, elsewhere=elsewhere)
        dispatched = 0
        while dispatched < MAX_AT_ONCE:
            offer = offers.next(now, has_room=self._endpoints.pools[model].has_room)
            entry = offer.request
            if entry is None:
                if offer.left_to is not None and model not in self._yielding:
                    loop = asyncio.get_running_loop()
                    self._yielding[model] = loop.call_later(YIELD_S, self._end_turn, model, queue, offer.left_to)
                if offer.why is NextReason.NO_ROOM:
                    self.batch_requests.make_room(model, queue.length_without_batch(), now)
                return
            waiter = entry.item
            target = waiter.select(waiter.context, now)
            if target is None:
                offers.no_target(entry)
                continue
            if isinstance(target, Refusal):
                queue.leave(entry)
                self._left(entry, now, QueueOutcome.ABANDONED)
            else:
                if isinstance(target, ForwardedAttempt):
                    # The serving region measures the work; here, the tenant has had its turn.
                    queue.start(entry, now).end(entry.cost_s, entry.cost_s)
                else:
                    queue.leave(entry)
                self._left(entry, now, QueueOutcome.DISPATCHED)
            self._shared_load.publish()
            waiter.on_target(target)
            dispatched += 1
        self._elsewhere |= elsewhere
        self.room_appeared()

    def _end_turn(self, model: str, queue: ModelQueue[Waiter], left_to: QueueHead) -> None:
        del self._yielding[model]
        if self._endpoints.pools[model].has_room:
            queue.pass_over(left_to, self._clock())
        self.room_appeared()

    def _poll(self) -> None:
        self._timer = None
        now = self._clock()
        try:
            for model, queue in list(self.queues.here.items()):
                for entry in queue.expire(now):
                    self._left(entry, now, QueueOutcome.ABANDONED)
                    entry.item.on_target(self._timeout_refusal(entry.item, now))
                self._dispatch(model, queue, elsewhere=True)
        finally:
            self._set_timer()

    def _timeout_refusal(self, waiter: Waiter, now: float) -> Refusal:
        context = waiter.context
        waited_s = now - context.received_at
        if now >= context.deadline_at:
            return Refusal(
                Reason.DEADLINE_PASSED, f"no endpoint had room within {waited_s:.1f} s, the request's deadline"
            )
        wait_s = self.queues.wait_s(context.model, self._endpoints.pools[context.model], waiter.unable)
        if wait_s == inf:
            detail = f"no endpoint became ready within {waited_s:.0f} s"
            return Refusal(Reason.NONE_READY, detail, retry_after_s=MIN_RETRY_S)
        return _refusal(f"the request waited {waited_s:.0f} s in the queue", wait_s)

    def _set_timer(self) -> None:
        if self._timer is None and any(self.queues.here.values()):
            self._timer = asyncio.get_running_loop().call_later(POLL_S, self._poll)

    def _left(self, entry: QueueEntry, now: float, outcome: QueueOutcome) -> None:
        waiter, model = entry.item, entry.item.context.model
        if not waiter.context.is_batch:
            self.queues.lift(model, waiter.unable)
        self._on_waited(model, now - entry.since, outcome, entry.priority)


def _refusal(detail: str, wait_s: float) -> Refusal:
    return Refusal(Reason.SATURATED, f"all endpoints are full: {detail}", retry_after_s=retry_after_s(wait_s))
