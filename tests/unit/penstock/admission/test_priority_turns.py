"""A low priority receives its reserve and ages; the batch priority has neither."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.model_queue import ModelQueue, NextReason, Pass, QueueHead
from penstock.admission.priority_turns import PriorityTurns
from penstock.admission.tenant_order import QueuedRequest
from penstock.policy.kinds.models import Queueing
from penstock.policy.kinds.tenants import BATCH_PRIORITY

LOW, HIGH = 0, 5


class Slot:
    """One slot, for whose next request the queue is asked."""

    def __init__(self, queueing: Queueing, *others: QueueHead) -> None:
        self.queue: ModelQueue[str] = ModelQueue()
        self.queue.use(queueing)
        self.others = others
        self.now = 0.0

    def join(self, priority: int, count: int = 1, cost_s: float = 1.0) -> None:
        for _ in range(count):
            request = QueuedRequest(
                f"{priority}", f"tenant of {priority}", priority, 1, self.now, self.now, 1e9, cost_s
            )
            assert self.queue.join(request, self.now) == []

    def serve(self) -> int | None:
        """Start the next request, which runs for its cost."""
        offer = Pass(self.queue, self.others, self.now).next(self.now, has_room=True)
        self.why = offer.why
        if offer.request is None:
            return None
        counter = self.queue.start(offer.request, self.now)
        self.now += offer.request.cost_s
        counter.end(offer.request.cost_s, offer.request.cost_s)
        return offer.request.priority

    def served(self, count: int) -> list[int | None]:
        return [self.serve() for _ in range(count)]


@pytest.mark.parametrize(("percent", "of_100"), [(0.0, 0), (5.0, 5), (25.0, 20)])
def test_a_low_priority_receives_its_reserve_of_the_work_of_higher_ones(percent: float, of_100: int) -> None:
    slot = Slot(Queueing(reserve_percent=percent, aging_s=0.0))
    slot.join(HIGH, 200)
    slot.join(LOW, 200)
    assert slot.served(100).count(LOW) == pytest.approx(of_100, abs=1)


def test_one_request_at_a_time_receives_no_more_than_the_reserve() -> None:
    slot = Slot(Queueing(reserve_percent=10.0, aging_s=0.0))
    slot.join(HIGH, 200)
    low = 0
    for _ in range(110):
        if not any(request.priority == LOW for request in slot.queue.in_order()):
            slot.join(LOW)
        low += slot.serve() == LOW
    assert low == pytest.approx(10, abs=1)


def test_a_priority_of_which_nothing_started_for_a_while_has_one_turn() -> None:
    slot = Slot(Queueing(reserve_percent=0.0, aging_s=10.0))
    slot.join(HIGH, 100)
    slot.join(LOW, 100)
    served = slot.served(40)
    assert [index for index, priority in enumerate(served) if priority == LOW] == [10, 20, 30]
    assert slot.why in (NextReason.PRIORITY, NextReason.SHARE)


def test_a_turn_by_age_may_come_within_a_second() -> None:
    slot = Slot(Queueing(reserve_percent=0.0, aging_s=0.5))
    slot.join(HIGH, 10, cost_s=0.25)
    slot.join(LOW, 10, cost_s=0.25)
    assert [slot.serve() for _ in range(6)] == [HIGH, HIGH, LOW, HIGH, LOW, HIGH]


def test_the_head_that_other_agents_receive_is_that_of_the_priority_whose_turn_it_is() -> None:
    slot = Slot(Queueing(reserve_percent=0.0, aging_s=10.0))
    slot.join(HIGH)
    slot.join(LOW)
    heads = [slot.queue.head(now) for now in (9.9, 10.0)]
    assert [(head.tenant, head.behind) for head in heads if head is not None] == [
        (f"tenant of {HIGH}", -HIGH),
        (f"tenant of {LOW}", -2000),
    ]


def test_a_debt_is_forgotten_once_the_reserve_has_paid_it() -> None:
    turns = PriorityTurns()
    turns.reserve = 0.5
    turns.begin_waiting(LOW, 0.0)
    turns.begin_waiting(HIGH, 0.0)
    turns.started(LOW, 1.0, 0.0)
    turns.end_waiting(LOW)
    assert turns.levels[LOW].owed_s == -1.0
    turns.started(HIGH, 1.5, 0.0)
    assert LOW in turns.levels, "it still owes a quarter of a second"
    turns.started(HIGH, 0.5, 0.0)
    assert LOW not in turns.levels


def test_the_defaults_are_a_trickle() -> None:
    slot = Slot(Queueing())
    slot.join(HIGH, 300)
    slot.join(LOW, 300)
    assert slot.served(200).count(LOW) == pytest.approx(20, abs=3)
    without_age = Slot(Queueing(aging_s=0.0))
    without_age.join(HIGH, 300)
    without_age.join(LOW, 300)
    assert without_age.served(200).count(LOW) == pytest.approx(10, abs=1)


def test_several_low_priorities_receive_a_reserve_each() -> None:
    slot = Slot(Queueing(reserve_percent=10.0, aging_s=0.0))
    for priority in (HIGH, LOW, -1):
        slot.join(priority, 200)
    served = slot.served(120)
    assert served.count(LOW) == pytest.approx(10, abs=1)
    assert served.count(-1) == pytest.approx(11, abs=1)


def test_batch_waits_until_nothing_else_does() -> None:
    slot = Slot(Queueing(reserve_percent=50.0, aging_s=0.1))
    slot.join(BATCH_PRIORITY, 5)
    slot.join(HIGH, 30)
    assert slot.served(31) == [HIGH] * 30 + [BATCH_PRIORITY]
    assert slot.queue.length_without_batch() == 0
    slot.join(LOW)
    assert slot.queue.length_without_batch() == 1


def test_the_turn_holds_against_higher_priorities_at_other_agents() -> None:
    elsewhere = QueueHead(-HIGH, 0.0, 0.0, 99, "other")
    slot = Slot(Queueing(reserve_percent=10.0, aging_s=0.0), elsewhere)
    slot.join(LOW, 2)
    assert slot.serve() is None, "the other agent's turn"
    slot.queue.counters.started_elsewhere(HIGH, "other", 5.0, 0.0)
    head = slot.queue.head(slot.now, slot.others)
    assert head is not None
    assert head < elsewhere
    assert slot.serve() == LOW
    assert slot.why == NextReason.TURN
    assert slot.serve() is None


@given(
    st.lists(st.tuples(st.integers(-2, 4), st.integers(0, 20), st.booleans(), st.sampled_from([-1.0, 0.0, 1.0]))),
    st.integers(-1, 5),
    st.sampled_from([0.0, 10.0]),
)
def test_the_turn_is_that_of_the_highest_waiting_priority_with_a_claim(
    waiting: list[tuple[int, int, bool, float]], highest: int, aging_s: float
) -> None:
    turns = PriorityTurns()
    turns.aging_s = aging_s
    for rank, since, waits, owed_s in waiting:
        priority = BATCH_PRIORITY if rank == -2 else rank
        turns.begin_waiting(priority, float(since))
        level = turns.levels[priority]
        level.waits, level.owed_s = waits, owed_s
    now = 20.0
    claims = [
        priority
        for priority, level in turns.levels.items()
        if level.waits
        and priority != BATCH_PRIORITY
        and priority < highest
        and (level.owed_s > 0.0 or (aging_s and now - level.since >= aging_s))
    ]
    assert turns.next(now, highest) == max(claims, default=None)
