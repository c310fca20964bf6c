"""Where requests wait for room: one queue a model, looked after by one timer, emptied as room appears.

Room appears when a request here ends, when another agent is heard to have less, when an endpoint becomes ready or a
spill credit arrives. The first two are acted on at once; the timer, which only runs while somebody waits, sees the
rest, and those who have to give up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.load import expected_wait_s
from penstock.queueing import YIELD_S, Head, Queue, Waiting, give_up_at, lets_it_be, retry_after_s, whose_turn
from penstock.reasons import Reason, Refusal
from regional_agent import shared_view as told

if TYPE_CHECKING:
    from regional_agent.endpoint import Pool
    from regional_agent.endpoints import Endpoints
    from regional_agent.road import Target, Ticket
    from regional_agent.shared_view import SharedView

LOOK_S = 0.1
"""Time (s) between two looks at what nobody announces, while somebody waits."""

MOST_LOOKED_AT = 8
"""Of those who wait without room here, this many are offered to other regions at one look."""

Answer = Callable[["Target | Refusal"], None]
Ask = Callable[["Ticket", float], "Target | Refusal | None"]


class Waiter:
    """Who waits, and how to tell them that it is their turn."""

    __slots__ = ("answer", "ticket")

    def __init__(self, ticket: Ticket, answer: Answer) -> None:
        """`answer` is called once, unless the waiter leaves before."""
        self.ticket = ticket
        self.answer = answer


Place = Waiting[Waiter]


class WaitingRoom:
    """Every queue of an agent."""

    def __init__(self, endpoints: Endpoints, shared_view: SharedView, clock: Callable[[], float]) -> None:
        """Nobody waits. `clock` is monotonic, in seconds."""
        self.ask: Ask = lambda ticket, now: None
        """Where a request may go now, or None: still nowhere. Set by the road."""
        self._endpoints = endpoints
        self._shared_view = shared_view
        self._clock = clock
        self._queues: dict[str, Queue[Waiter]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._yielding: dict[str, asyncio.TimerHandle] = {}
        self._called = False
        shared_view.waiting_here = self._told
        shared_view.on_heard = self.room_appeared

    def waiting(self, model: str) -> int:
        """Requests for a model that wait here and at the other agents of the region."""
        queue = self._queues.get(model)
        return (len(queue) if queue else 0) + sum(one.requests for one in self._shared_view.others_waiting(model))

    def waiting_here(self, model: str) -> int:
        """Those that wait at this agent."""
        queue = self._queues.get(model)
        return len(queue) if queue else 0

    def wait_s(self, model: str) -> float:
        """Time (s) that one more request for a model would wait."""
        pool = self._endpoints.pool(model)
        return expected_wait_s(pool.in_flight + self.waiting(model), pool.slots, pool.service_s)

    def somebody_first(self, ticket: Ticket) -> bool:
        """Whether others wait, here or at another agent, that come before this request."""
        if any(one.behind <= -ticket.priority for one in self._shared_view.others_waiting(ticket.model)):
            return True
        queue = self._queues.get(ticket.model)
        return queue is not None and len(queue) > 0 and queue.ahead_of(ticket.priority, _give_up_at(ticket)) > 0

    def join(self, ticket: Ticket, size_bytes: int, answer: Answer, now: float) -> Place | Refusal:
        """Wait for room, unless that would take too long.

        Args:
            size_bytes: memory that the request's body holds.
            answer: called with where to go, or why nowhere; not within this call.
        """
        model, until = ticket.model, _give_up_at(ticket)
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = Queue()
        pool = self._endpoints.pool(model)
        ahead = queue.ahead_of(ticket.priority, until) + self.waiting(model) - len(queue)
        wait_s = expected_wait_s(pool.in_flight + ahead, pool.slots, pool.service_s)
        if now + wait_s > until:
            return _refusal(f"waiting {wait_s:.0f} s for it is of no use", wait_s)
        place, displaced = queue.join(
            Waiter(ticket, answer), ticket.errand.tenant, ticket.priority, size_bytes, now, until
        )
        for one in displaced:
            self._later(one, _refusal("others come first", wait_s))
        if place is None:
            return _refusal("too many wait", wait_s)
        self._shared_view.tell()
        self._set_timer()
        if self._shared_view.others_waiting(model):
            self.room_appeared()
        return place

    def leave(self, place: Place) -> None:
        """The client has gone, or its deadline has passed."""
        if place.waits:
            self._queues[place.item.ticket.model].leave(place)
            self._shared_view.tell()

    def room_appeared(self) -> None:
        """Something has ended somewhere: look before long, once for all that happens until then."""
        if not self._called and any(self._queues.values()):
            self._called = True
            asyncio.get_running_loop().call_soon(self._serve)

    def close(self) -> None:
        """Nobody is served any more."""
        for timer in (self._timer, *self._yielding.values()):
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._yielding.clear()
        self._queues.clear()

    def _serve(self) -> None:
        self._called = False
        for model, queue in list(self._queues.items()):
            if queue:
                self._serve_here(model, queue)

    def _serve_here(self, model: str, queue: Queue[Waiter]) -> None:
        """Hand room at this region's endpoints out, as long as it is this agent's turn."""
        pool = self._endpoints.pool(model)
        while (head := queue.head()) is not None and _has_room(pool):
            turn = whose_turn(head, self._heads_of_others(model))
            if turn is not None:
                if model not in self._yielding:
                    loop = asyncio.get_running_loop()
                    self._yielding[model] = loop.call_later(YIELD_S, self._take_after_all, model, turn)
                return
            if not self._offer(queue, 1):
                return

    def _take_after_all(self, model: str, left_to: Head) -> None:
        """Whoever's turn it was has had the time to take it."""
        del self._yielding[model]
        queue = self._queues.get(model)
        head = queue.head() if queue is not None else None
        if queue is None or head is None or not _has_room(self._endpoints.pool(model)):
            return
        if lets_it_be(left_to, whose_turn(head, self._heads_of_others(model))):
            self._offer(queue, 1)
        self.room_appeared()

    def _offer(self, queue: Queue[Waiter], looked_at: int) -> bool:
        """Ask where the first of those who wait may go; whether one of them has left."""
        now = self._clock()
        for place in queue.first(looked_at):
            answer = self.ask(place.item.ticket, now)
            if answer is not None:
                queue.leave(place)
                self._shared_view.tell()
                place.item.answer(answer)
                return True
        return False

    def _look(self) -> None:
        self._timer = None
        now = self._clock()
        for model, queue in list(self._queues.items()):
            for place in queue.give_up(now):
                waited_s = now - place.item.ticket.received_at
                place.item.answer(_refusal(f"no room within {waited_s:.0f} s", self.wait_s(model)))
            if queue:
                self._serve_here(model, queue)
            while queue and not _has_room(self._endpoints.pool(model)) and self._offer(queue, MOST_LOOKED_AT):
                pass
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and any(self._queues.values()):
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _later(self, place: Place, refusal: Refusal) -> None:
        asyncio.get_running_loop().call_soon(place.item.answer, refusal)

    def _told(self) -> dict[str, told.Waiting]:
        """What the other agents are to know."""
        now = self._clock()
        return {
            model: told.Waiting(len(queue), head.behind, max(0, int((now - head.since) * 1000)))
            for model, queue in self._queues.items()
            if (head := queue.head()) is not None
        }

    def _heads_of_others(self, model: str) -> list[Head]:
        heard_at = self._clock() - self._shared_view.age_s()
        return [Head(one.behind, heard_at - one.waited_ms / 1000) for one in self._shared_view.others_waiting(model)]


def _has_room(pool: Pool) -> bool:
    return any(view.takes_more for view in pool.views)


def _give_up_at(ticket: Ticket) -> float:
    """Counted from when it came: one that is tried again keeps its place."""
    return give_up_at(ticket.received_at, ticket.deadline_at)


def _refusal(detail: str, wait_s: float) -> Refusal:
    return Refusal(Reason.SATURATED, f"no room: {detail}", retry_after_s=retry_after_s(wait_s))
