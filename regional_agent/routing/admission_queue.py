"""Where requests wait for room: one queue a model, looked after by one timer, emptied as room appears.

Room appears when a request here ends, when another agent is heard to have less, when a spill credit arrives or when an
endpoint becomes ready. The first three are acted on at once; the timer, which only runs while somebody waits, sees the
rest, and those who have to give up.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.admission.fair_queueing import YIELD_S, Head, Turns
from penstock.admission.queueing import CREDIT_WAIT_S, Queue, Waiting, give_up_at, retry_after_s
from penstock.fleet.expected_wait import expected_wait_s
from penstock.routing.reasons import Reason, Refusal
from regional_agent.shared_load import shared_load as told
from regional_agent.telemetry.agent_metrics import WaitEnd

if TYPE_CHECKING:
    from regional_agent.endpoints.endpoint_pool import EndpointPool
    from regional_agent.endpoints.endpoint_set import EndpointSet
    from regional_agent.routing.request_context import RequestContext, Target
    from regional_agent.shared_load.shared_load import SharedLoad

LOOK_S: Final = 0.1
"""Time (s) between two looks at what nobody announces, while somebody waits."""

MAX_IN_VAIN: Final = 8
"""At one look, no more than this many are asked for whom there turns out to be nothing."""

MAX_AT_ONCE: Final = 256
"""Requests that are sent off in one turn of the event loop; the others follow in the next ones."""

Answer = Callable[["Target | Refusal"], None]
Ask = Callable[["RequestContext", float], "Target | Refusal | None"]


class Waiter:
    """Who waits, and how to tell them that it is their turn."""

    __slots__ = ("answer", "context")

    def __init__(self, context: RequestContext, answer: Answer) -> None:
        """`answer` is called once, unless the waiter leaves before."""
        self.context = context
        self.answer = answer


QueueEntry = Waiting[Waiter]


class AdmissionQueue:
    """Every queue of an agent."""

    def __init__(
        self,
        endpoints: EndpointSet,
        shared_load: SharedLoad,
        clock: Callable[[], float],
        on_waited: Callable[[str, float, WaitEnd], None] = lambda model, waited_s, end: None,
    ) -> None:
        """Nobody waits.

        Args:
            clock: monotonic, in seconds.
            on_waited: hears, for what model and how long (s), of everybody who waits no more.
        """
        self.ask: Ask = lambda context, now: None
        """Where a request may go now, or None: still nowhere. Set by the road."""
        self._endpoints = endpoints
        self._shared_load = shared_load
        self._clock = clock
        self._on_waited = on_waited
        self._queues: dict[str, Queue[Waiter]] = {}
        self._turns: dict[str, Turns] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._yielding: dict[str, asyncio.TimerHandle] = {}
        self._called = False
        self._elsewhere = False
        self._numbers_from = int.from_bytes(os.urandom(4)) << 20
        """Added to the numbers of those who wait here, so that no two of a region have the same."""
        shared_load.waiting_here = self._told
        shared_load.on_heard = self.room_appeared

    def waiting(self, model: str) -> int:
        """Requests for a model that wait here and at the other agents of the region."""
        queue = self._queues.get(model)
        here = len(queue) if queue is not None else 0
        others = self._shared_load.remote_queues(model)
        return here + sum(one.requests for one in others) if others else here

    def is_awaited(self, model: str) -> bool:
        """Whether anybody waits for a model, here or at the other agents of the region."""
        return bool(self._queues.get(model) or self._shared_load.remote_queues(model))

    def waiting_here(self, model: str) -> int:
        """Those that wait at this agent."""
        queue = self._queues.get(model)
        return len(queue) if queue is not None else 0

    def wait_s(self, model: str) -> float:
        """Time (s) that one more request for a model would wait."""
        pool = self._endpoints.pool(model)
        return expected_wait_s(pool.in_flight + self.waiting(model), pool.slots, pool.service_s)

    def must_queue(self, context: RequestContext) -> bool:
        """Whether others wait, here or at another agent, that come before this request."""
        others = self._shared_load.remote_queues(context.model)
        if others and any(one.behind <= -context.priority for one in others):
            return True
        queue = self._queues.get(context.model)
        return queue is not None and len(queue) > 0 and queue.ahead_of(context.priority, _give_up_at(context)) > 0

    def join(
        self, context: RequestContext, size_bytes: int, answer: Answer, now: float, *, elsewhere: bool = False
    ) -> QueueEntry | Refusal:
        """Wait for room, unless that would take too long.

        Args:
            size_bytes: memory that the request's body holds.
            answer: called with where to go, or why nowhere; not within this call.
            elsewhere: another region may well grant a credit soon, however long it takes here.
        """
        model, until = context.model, _give_up_at(context)
        queue = self._queues.get(model)
        if queue is None:
            queue, self._turns[model] = Queue(), Turns()
            self._queues[model] = queue
        pool = self._endpoints.pool(model)
        ahead = queue.ahead_of(context.priority, until) + self.waiting(model) - len(queue)
        wait_s = expected_wait_s(pool.in_flight + ahead, pool.slots, pool.service_s)
        hopeless = now + wait_s > until
        if hopeless and not elsewhere:
            return _refusal(f"waiting {wait_s:.0f} s for it is of no use", wait_s)
        leave_at = now + CREDIT_WAIT_S if hopeless else until
        entry, displaced = queue.join(
            Waiter(context, answer), context.estimate.tenant, context.priority, size_bytes, now, until, leave_at
        )
        for one in displaced:
            self._ended(one, now, WaitEnd.IN_VAIN)
            self._later(one, _refusal("others come first", wait_s))
        if entry is None:
            return _refusal("too many wait", wait_s)
        self._shared_load.tell()
        self._set_timer()
        if _has_room(pool):
            self.room_appeared()
        return entry

    def leave(self, entry: QueueEntry) -> None:
        """The client has gone, or its deadline has passed."""
        if entry.waits:
            self._queues[entry.item.context.model].leave(entry)
            self._ended(entry, self._clock(), WaitEnd.IN_VAIN)
            self._shared_load.tell()

    def room_appeared(self) -> None:
        """Something has ended in this region: look before long, once for all that happens until then."""
        if self._queues and not self._called and any(self._queues.values()):
            self._called = True
            asyncio.get_running_loop().call_soon(self._serve)

    def credit_arrived(self) -> None:
        """Another region may take some: those who wait come before those who come now."""
        self._elsewhere = True
        self.room_appeared()

    def close(self) -> None:
        """Nobody is served any more. Those who still wait leave when their connections are cut."""
        self._called = True
        for timer in (self._timer, *self._yielding.values()):
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._yielding.clear()

    def _serve(self) -> None:
        elsewhere, self._elsewhere = self._elsewhere, False
        self._called = False
        for model, queue in list(self._queues.items()):
            if queue:
                self._offer(model, queue, elsewhere=elsewhere)

    def _offer(self, model: str, queue: Queue[Waiter], *, elsewhere: bool) -> None:
        """Send off who may go, in order, as long as there is room here in this agent's turn, or may be elsewhere.

        Where there is none for one, there is none for others of the same residency; those are not asked.
        """
        now, pool = self._clock(), self._endpoints.pool(model)
        nowhere: set[str] = set()
        in_vain = sent = 0
        for entry in queue.in_order():
            context = entry.item.context
            residency = context.admitted.permitted.name
            if residency in nowhere or now < context.rests_until:
                continue
            if not _has_room(pool):
                if not elsewhere:
                    return
            elif self._yields(model, entry, now):
                return
            answer = self.ask(context, now)
            if answer is None:
                in_vain += 1
                if in_vain >= MAX_IN_VAIN:
                    return
                if not context.attempts:
                    nowhere.add(residency)
                continue
            queue.leave(entry)
            self._ended(entry, now, WaitEnd.IN_VAIN if isinstance(answer, Refusal) else WaitEnd.SERVED)
            self._shared_load.tell()
            entry.item.answer(answer)
            sent += 1
            if sent >= MAX_AT_ONCE:
                self._elsewhere |= elsewhere
                self.room_appeared()
                return

    def _yields(self, model: str, entry: QueueEntry, now: float) -> bool:
        """Whether room here is another agent's first, and so left alone until that one has had time to take it."""
        others = self._shared_load.remote_queues(model)
        if not others:
            return False
        heard_at = now - self._shared_load.age_s()
        heads = [Head(one.behind, heard_at - one.waited_ms / 1000, one.which) for one in others]
        turn = self._turns[model].whose(self._head(entry), heads, now)
        if turn is None:
            return False
        if model not in self._yielding:
            loop = asyncio.get_running_loop()
            self._yielding[model] = loop.call_later(YIELD_S, self._take_after_all, model, turn)
        return True

    def _take_after_all(self, model: str, left_to: Head) -> None:
        """Whoever's turn it was has had the time to take what room there is."""
        del self._yielding[model]
        if _has_room(self._endpoints.pool(model)):
            self._turns[model].pass_over(left_to, self._clock())
        self.room_appeared()

    def _look(self) -> None:
        self._timer = None
        now = self._clock()
        try:
            for model, queue in list(self._queues.items()):
                for entry in queue.give_up(now):
                    self._ended(entry, now, WaitEnd.IN_VAIN)
                    entry.item.answer(self._too_late(entry.item.context, now))
                self._offer(model, queue, elsewhere=True)
        finally:
            self._set_timer()

    def _too_late(self, context: RequestContext, now: float) -> Refusal:
        waited_s = now - context.received_at
        if now >= context.deadline_at:
            return Refusal(Reason.DEADLINE_PASSED, f"no room within {waited_s:.1f} s, the request's deadline")
        return _refusal(f"waited {waited_s:.0f} s for it", self.wait_s(context.model))

    def _set_timer(self) -> None:
        if self._timer is None and any(self._queues.values()):
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _ended(self, entry: QueueEntry, now: float, end: WaitEnd) -> None:
        self._on_waited(entry.item.context.model, now - entry.since, end)

    def _later(self, entry: QueueEntry, refusal: Refusal) -> None:
        asyncio.get_running_loop().call_soon(entry.item.answer, refusal)

    def _told(self) -> dict[str, told.Waiting]:
        """What the other agents are to know."""
        now = self._clock()
        waiting = {}
        for model, queue in self._queues.items():
            first = queue.head()
            if first is not None:
                head = self._head(first)
                waited_ms = max(0, int((now - head.since) * 1000))
                waiting[model] = told.Waiting(len(queue), head.behind, waited_ms, head.which)
        return waiting

    def _head(self, entry: QueueEntry) -> Head:
        return Head(-entry.priority, entry.since, self._numbers_from + entry.number)


def _has_room(pool: EndpointPool) -> bool:
    return any(view.takes_more for view in pool.views)


def _give_up_at(context: RequestContext) -> float:
    """Counted from when it came: one that is tried again keeps its entry."""
    return give_up_at(context.received_at, context.deadline_at)


def _refusal(detail: str, wait_s: float) -> Refusal:
    return Refusal(Reason.SATURATED, f"no room: {detail}", retry_after_s=retry_after_s(wait_s))
