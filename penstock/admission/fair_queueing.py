"""One model's admission queue at one agent, and its turn among the agents of the region that share the endpoints.

The agent that frees a slot can use it first. If it always did, an agent without running requests would never get a
slot. Each agent therefore leaves free slots to the agent whose first request has waited longest, by the queues that
agents report to each other.

The turn is bounded in time and is not a lock: an agent that does not use its turn is skipped for a while, so an agent
that is down, or whose first request cannot use the slot, does not delay others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.admission.queueing import Item, Place, Queue, QueuedRequest

Answer = TypeVar("Answer")

YIELD_S = 0.06
"""Time (s) for which an agent leaves a free slot to another agent: the other agent detects the slot within about 20 ms,
and its use is visible to all agents after about the same time again."""

PASSED_OVER_S = 1.0
"""Time (s) for which an agent that did not use its turn is skipped: half of the lifetime of an agent's report."""

MAX_WITHOUT_PLACE = 8
"""Number of requests without a target after which a pass ends."""

MAX_AT_ONCE = 256
"""Maximum number of requests that one pass serves; the next pass serves the remaining requests."""


class QueueHead(NamedTuple):
    """The first place in one agent's queue. The smallest of several agents' heads goes first."""

    behind: int
    """Negated priority of the request."""
    since: float
    """Arrival time (s) of the request, by the reader's clock."""
    which: int
    """Number of the place, unique among the places of all queues in the region."""


class TurnOrder:
    """The other agents' queue heads that one agent skips for one model."""

    __slots__ = ("_passed_over",)

    def __init__(self) -> None:
        """Create a record that skips no head."""
        self._passed_over: dict[int, float] = {}
        """Time (s) until which a head is skipped, by `QueueHead.which`."""

    def next_other(self, own: QueueHead, others: Iterable[QueueHead], now: float) -> QueueHead | None:
        """Return the head of the other agent whose turn it is; None if it is the turn of `own`."""
        passed_over = self._passed_over
        if passed_over:
            passed_over = self._passed_over = {which: until for which, until in passed_over.items() if until > now}
        first = min((head for head in others if head.which not in passed_over), default=own)
        return first if first < own else None

    def pass_over(self, head: QueueHead, now: float) -> None:
        """Skip a head that did not use its turn."""
        self._passed_over[head.which] = now + PASSED_OVER_S


class Dispatcher(Protocol[Item, Answer]):
    """The agent's functions that a pass over the queue calls."""

    def has_room(self) -> bool:
        """Whether some endpoint of the region may take one more request."""

    def other_heads(self, now: float) -> Sequence[QueueHead]:
        """Return the heads that the region's other agents report for the same model."""

    def group(self, item: Item, now: float) -> str | None:
        """Return the group of a request: all requests of a group have a target, or none has. None skips the request."""

    def represents_group(self, item: Item) -> bool:
        """Whether the absence of a target for this request implies that its group has no target."""

    def ask(self, item: Item, now: float) -> Answer | None:
        """Return the target of a request; None if the request continues to wait."""

    def deliver(self, entry: QueuedRequest[Item], answer: Answer, now: float) -> None:
        """Send a request, which has left the queue, to its target."""


class PassResult(NamedTuple):
    """Result of a pass over the queue."""

    left_to: QueueHead | None = None
    """Head of the other agent to which the free slots are left; None if this agent did not yield."""
    unfinished: bool = False
    """Whether MAX_AT_ONCE was reached, so that the remaining requests need another pass."""


class FairQueue(Queue[Item]):
    """Requests for one model that wait at one agent."""

    def __init__(self, numbers_from: int) -> None:
        """Create an empty queue; `numbers_from` is added to its numbers to make them unique in the region."""
        super().__init__()
        self._numbers_from = numbers_from
        self._turns = TurnOrder()

    def own_head(self) -> QueueHead | None:
        """Return the first place in the form that other agents receive; None for an empty queue."""
        first = self.head()
        return None if first is None else self._head_of(first)

    def must_queue(self, priority: int, arrived_at: float, other_heads: Iterable[QueueHead]) -> bool:
        """Whether a waiting request, at this agent or at another one, precedes a new request.

        The deadline of the new request has no effect, because a request that does not join takes no place.

        Args:
            arrived_at: arrival time (s) of the new request.
            other_heads: heads of the queues of the region's other agents.
        """
        if any(head.behind <= -priority for head in other_heads):
            return True
        return not self.precedes(priority, arrived_at)

    def serve(self, dispatcher: Dispatcher[Item, Any], now: float, *, elsewhere: bool = False) -> PassResult:
        """Serve requests in order, in this agent's turn while slots are free, or by other regions if `elsewhere`.

        Args:
            elsewhere: whether requests may leave the region, so that the pass continues although the region has no free
                slot.
        """
        without_place: set[str] = set()
        without_result = served = 0
        for place in self.places():
            entry = self.request_at(place)
            if entry is None:
                continue
            group = dispatcher.group(entry.item, now)
            if group is None or group in without_place:
                continue
            if dispatcher.has_room():
                left_to = self._turns.next_other(self._head_of(place), dispatcher.other_heads(now), now)
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
        """End the turn of another agent's request, YIELD_S after `serve` left free slots to it."""
        if has_room:
            self._turns.pass_over(left_to, now)

    def _head_of(self, place: Place) -> QueueHead:
        return QueueHead(place.behind, place.arrived_at, self._numbers_from + place.number)
