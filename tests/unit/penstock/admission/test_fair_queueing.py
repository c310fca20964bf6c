"""A free slot goes to the agent whose first request has waited longest, or to the next if that one does not use it."""

from __future__ import annotations

from penstock.admission.fair_queueing import PASSED_OVER_S, YIELD_S, FairQueue, QueueHead, TurnOrder
from penstock.admission.queueing import QueuedRequest

OWN = QueueHead(0, 5.0, 1)


def test_the_one_whose_first_has_waited_longest_takes_room() -> None:
    turns = TurnOrder()
    older, younger, urgent = QueueHead(0, 4.0, 2), QueueHead(0, 6.0, 3), QueueHead(-3, 9.0, 4)
    assert turns.next_other(OWN, [], 0.0) is None
    assert turns.next_other(OWN, [younger], 0.0) is None
    assert turns.next_other(OWN, [younger, older], 0.0) == older
    assert turns.next_other(OWN, [older, urgent], 0.0) == urgent


def test_an_item_that_does_not_move_in_its_turn_is_skipped_for_a_while() -> None:
    turns = TurnOrder()
    dead, live = QueueHead(0, 3.0, 2), QueueHead(0, 4.0, 3)
    turns.pass_over(dead, 10.0)
    assert turns.next_other(OWN, [dead], 10.0) is None
    assert turns.next_other(OWN, [dead._replace(since=3.2)], 10.1) is None, "a new report of the same one"
    assert turns.next_other(OWN, [dead, live], 10.1) == live
    turns.pass_over(live, 10.2)
    assert turns.next_other(OWN, [dead, live], 10.3) is None, "two dead agents hold up nobody either"
    assert turns.next_other(OWN, [dead._replace(which=9)], 10.3) is not None, "its next one has a turn of its own"
    assert turns.next_other(OWN, [dead, live], 10.0 + PASSED_OVER_S) == dead


class Slots:
    """Places requests by name while slots are free; the first letter of a name is the group."""

    def __init__(self, free: int, heads: list[QueueHead] | None = None) -> None:
        self.free = free
        self.heads = heads or []
        self.asked: list[str] = []
        self.placed: list[str] = []
        self.homeless: set[str] = set()

    def has_room(self) -> bool:
        return self.free > 0

    def other_heads(self, now: float) -> list[QueueHead]:
        return self.heads

    def group(self, item: str, now: float) -> str | None:
        return None if item.endswith("rests") else item[0]

    def represents_group(self, item: str) -> bool:
        return True

    def ask(self, item: str, now: float) -> str | None:
        self.asked.append(item)
        return None if item[0] in self.homeless else item

    def deliver(self, entry: QueuedRequest[str], answer: str, now: float) -> None:
        assert not entry.waits
        self.free -= 1
        self.placed.append(answer)


def queue(*names: str) -> FairQueue[str]:
    made: FairQueue[str] = FairQueue(0)
    for since, name in enumerate(names):
        made.join(name, "t", 0, 1, float(since), 100.0 + since)
    return made


def test_requests_are_served_in_order_while_there_is_room() -> None:
    waiting, slots = queue("a1", "a2", "a3"), Slots(2)
    assert waiting.serve(slots, 5.0) == (None, False)
    assert (slots.placed, slots.asked, len(waiting)) == (["a1", "a2"], ["a1", "a2"], 1)


def test_a_group_without_capacity_is_tried_once_and_delays_no_other() -> None:
    waiting, slots = queue("a1", "a2", "b1 rests", "b2"), Slots(2)
    slots.homeless = {"a"}
    waiting.serve(slots, 5.0)
    assert (slots.asked, slots.placed) == (["a1", "b2"], ["b2"])


def test_room_is_left_to_an_older_head_elsewhere_until_its_turn_is_over() -> None:
    older = QueueHead(0, -1.0, 99)
    waiting, slots = queue("a1"), Slots(1, [older])
    left_to, _ = waiting.serve(slots, 5.0)
    assert left_to == older
    waiting.end_turn(older, 5.0 + YIELD_S, has_room=True)
    assert waiting.serve(slots, 5.0 + YIELD_S) == (None, False)
    assert slots.placed == ["a1"]


def test_a_new_request_queues_behind_those_that_come_before_it_anywhere() -> None:
    elsewhere = [QueueHead(-1, 0.0, 7)]
    assert queue().must_queue(1, 50.0, elsewhere)
    assert not queue().must_queue(2, 50.0, elsewhere)
    assert queue("a1").must_queue(0, 0.0, ())
    assert not queue("a1").must_queue(0, -1.0, ()), "it arrived earlier and is tried again"
