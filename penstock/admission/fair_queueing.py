"""One model's admission queue at one agent, and its turn among the agents of the region that share the endpoints.

The agent that frees a slot sees it first. If it always took the slot, an agent without running requests would never get
one; so each agent leaves room to the agent whose first request has waited longest, as far as agents report their queues
to each other. In simulation, eight agents in front of full engines, that lowers the 99th percentile of time to first
token by 40 % (`make bench-choosing`).

The turn is bounded in time and no lock: an agent that does not take room in its turn is passed over for a while, so a
dead agent, or one whose first request cannot use the room, delays no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.admission.queueing import Item, Queue, QueuedRequest

Answer = TypeVar("Answer")

YIELD_S = 0.06
"""How long (s) an agent leaves room to another agent whose turn it is: the other sees it within about 20 ms, and as
long again passes until all agents have seen that it was taken."""

PASSED_OVER_S = 1.0
"""How long (s) an agent that did not take its turn is passed over: half as long as a dead agent's report counts."""

MAX_WITHOUT_PLACE = 8
"""In one pass, no more requests than this are asked for without result."""

MAX_AT_ONCE = 256
"""Requests that one pass serves; the others follow in the next one."""


class QueueHead(NamedTuple):
    """The first request of one agent's queue. Of several agents' heads the least goes first."""

    behind: int
    """Minus its priority."""
    since: float
    """When it began to wait, by the reader's clock (s)."""
    which: int
    """Unique among the waiting requests of the region."""


class TurnOrder:
    """What one agent remembers of the turns of the other agents that wait for one model."""

    __slots__ = ("_passed_over",)

    def __init__(self) -> None:
        """Create a record that passes over no agent."""
        self._passed_over: dict[int, float] = {}
        """Until when (s), by `QueueHead.which`."""

    def next_other(self, own: QueueHead, others: Iterable[QueueHead], now: float) -> QueueHead | None:
        """The head of another agent whose turn it is; None where it is the turn of `own`."""
        passed_over = self._passed_over
        if passed_over:
            passed_over = self._passed_over = {which: until for which, until in passed_over.items() if until > now}
        first = min((head for head in others if head.which not in passed_over), default=own)
        return first if first < own else None

    def pass_over(self, head: QueueHead, now: float) -> None:
        """Pass over a head that left room unused in its turn."""
        self._passed_over[head.which] = now + PASSED_OVER_S


class Dispatcher(Protocol[Item, Answer]):
    """What a pass over the queue asks of its agent."""

    def has_room(self) -> bool:
        """Whether some endpoint of the region may take one more request."""

    def other_heads(self, now: float) -> Sequence[QueueHead]:
        """The heads that the region's other agents report for the same model."""

    def group(self, item: Item, now: float) -> str | None:
        """The group of a request, whose members all find a place or none does; None while it may not be offered one."""

    def represents_group(self, item: Item) -> bool:
        """Whether no place for this request means that there is none for its group."""

    def ask(self, item: Item, now: float) -> Answer | None:
        """Where a request goes now; None where it has to wait on."""

    def deliver(self, entry: QueuedRequest[Item], answer: Answer, now: float) -> None:
        """Send a request, which has left the queue, on its way."""


class PassResult(NamedTuple):
    """How a pass over the queue ended."""

    left_to: QueueHead | None = None
    """The other agent's request to which the room that is left belongs."""
    unfinished: bool = False
    """MAX_AT_ONCE was reached; the rest needs another pass."""


class FairQueue(Queue[Item]):
    """Requests for one model that wait at one agent."""

    def __init__(self, numbers_from: int) -> None:
        """Create an empty queue; `numbers_from` is added to its numbers to make them unique in the region."""
        super().__init__()
        self._numbers_from = numbers_from
        self._turns = TurnOrder()

    def own_head(self) -> QueueHead | None:
        """The first request, as other agents see it; None while none waits."""
        first = self.head()
        return None if first is None else self._head_of(first)

    def must_queue(self, priority: int, give_up_at: float, other_heads: Iterable[QueueHead]) -> bool:
        """Whether requests wait, here or at another agent, that come before a new one.

        Args:
            give_up_at: when (s) the new request would give up.
            other_heads: of the region's other agents.
        """
        if any(head.behind <= -priority for head in other_heads):
            return True
        return len(self) > 0 and self.ahead_of(priority, give_up_at) > 0

    def serve(self, dispatcher: Dispatcher[Item, Any], now: float, *, elsewhere: bool = False) -> PassResult:
        """Serve requests in order, while there is room in this agent's turn, or there may be a place elsewhere.

        Args:
            elsewhere: requests may leave the region, so they are asked for although the region has no room.
        """
        without_place: set[str] = set()
        without_result = served = 0
        for entry in self.in_order():
            group = dispatcher.group(entry.item, now)
            if group is None or group in without_place:
                continue
            if dispatcher.has_room():
                left_to = self._turns.next_other(self._head_of(entry), dispatcher.other_heads(now), now)
                if left_to is not None:
                    return PassResult(left_to=left_to)
            elif not elsewhere:
                break
            answer = dispatcher.ask(entry.item, now)
            if answer is None:
                without_result += 1
                if without_result >= MAX_WITHOUT_PLACE:
                    break
                if dispatcher.represents_group(entry.item):
                    without_place.add(group)
                continue
            self.leave(entry)
            dispatcher.deliver(entry, answer, now)
            served += 1
            if served >= MAX_AT_ONCE:
                return PassResult(unfinished=True)
        return PassResult()

    def end_turn(self, left_to: QueueHead, now: float, *, has_room: bool) -> None:
        """End the turn of another agent's request, YIELD_S after `serve` left room to it."""
        if has_room:
            self._turns.pass_over(left_to, now)

    def _head_of(self, entry: QueuedRequest[Item]) -> QueueHead:
        return QueueHead(-entry.priority, entry.since, self._numbers_from + entry.number)
