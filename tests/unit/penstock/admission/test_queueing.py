"""The admission queue: order of requests, limits, and displacement."""

from __future__ import annotations

import weakref
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.queueing import (
    MAX_RETRY_S,
    Queue,
    QueuedRequest,
    give_up_at,
    retry_after_s,
    spread_retry_after_s,
)


def join(queue: Queue[str], item: str, *, tenant: str = "t", priority: int = 0, at: float = 0.0, until: float = 20.0):
    return queue.join(item, tenant, priority, 100, at, until)


def order(queue: Queue[str]) -> list[str]:
    return [waiting.item for waiting in queue.in_order()]


def entered(answer: tuple[QueuedRequest[str] | None, list[QueuedRequest[str]]]) -> QueuedRequest[str]:
    waiting, displaced = answer
    assert waiting is not None
    assert displaced == []
    return waiting


def test_priority_first_then_the_earliest_deadline_then_who_came_first() -> None:
    queue: Queue[str] = Queue()
    join(queue, "late", until=30)
    join(queue, "first", until=20)
    join(queue, "second", until=20)
    join(queue, "urgent", priority=5, until=90)
    assert order(queue) == ["urgent", "first", "second", "late"]
    assert queue.ahead_of("t", 0, 0.0, 20) == 3
    assert queue.ahead_of("t", 5, 0.0, 10) == 0
    assert queue.ahead_of("t", -1, 0.0, 10) == 4


def test_leaving_twice_is_leaving_once() -> None:
    queue: Queue[str] = Queue()
    first, _ = entered(join(queue, "one")), entered(join(queue, "two"))
    queue.leave(first)
    queue.leave(first)
    assert order(queue) == ["two"]


def test_those_for_whom_it_is_too_late_give_up() -> None:
    queue: Queue[str] = Queue()
    gone = entered(join(queue, "gone", until=1))
    join(queue, "soon", until=2)
    join(queue, "later", priority=9, until=3)
    queue.leave(gone)
    assert queue.give_up(1.5) == []
    assert [queued.item for queued in queue.give_up(2.5)] == ["soon"]
    assert [queued.item for queued in queue.give_up(2.5)] == []
    assert [queued.item for queued in queue.give_up(3.0)] == ["later"]
    assert len(queue) == 0


def test_nothing_of_who_left_is_kept() -> None:
    class Body:
        """A body that is held in memory."""

    queue: Queue[Body] = Queue()
    places = [queue.join(Body(), "t", 0, 100, 0.0, 20.0 + at)[0] for at in range(100)]
    held = [weakref.ref(place.item) for place in places if place is not None]
    for place in places[1:]:
        assert place is not None
        queue.leave(place)
    del place, places[1:]
    assert sum(body() is not None for body in held) <= 3, "the one that waits, and what is not worth tidying yet"
    assert places[0] is not None
    queue.leave(places.pop())
    assert [body() for body in held] == [None] * 100


def test_making_room_in_vain_changes_nothing() -> None:
    queue: Queue[str] = Queue(max_bytes=300)
    for name, priority in (("low", 0), ("high", 1), ("higher", 1)):
        queue.join(name, "t", priority, 100, 0.0, 20.0)
    assert queue.join("huge", "other", 1, 300, 0.0, 20.0) == (None, [])
    assert order(queue) == ["high", "higher", "low"]
    assert [queued.item for queued in queue.give_up(30.0)] == ["low", "high", "higher"]


def test_who_leaves_early_is_no_more_urgent_for_it() -> None:
    queue: Queue[str] = Queue()
    join(queue, "first", until=20)
    queue.join("early", "t", 0, 100, 0.0, 21.0, leave_at=1.0)
    assert order(queue) == ["first", "early"]
    assert queue.give_up(0.9) == []
    assert [queued.item for queued in queue.give_up(1.0)] == ["early"]
    assert queue.give_up(19.9) == []
    assert [queued.item for queued in queue.give_up(20.0)] == ["first"]


def test_a_full_queue_refuses_who_would_come_last() -> None:
    queue: Queue[str] = Queue(max_length=2)
    join(queue, "a")
    join(queue, "b")
    assert join(queue, "c") == (None, [])
    assert order(queue) == ["a", "b"]


def test_a_higher_priority_displaces_the_last_of_the_lowest() -> None:
    queue: Queue[str] = Queue(max_length=2)
    join(queue, "low")
    join(queue, "lower", priority=-1)
    waiting, displaced = join(queue, "high", priority=1)
    assert waiting is not None
    assert [queued.item for queued in displaced] == ["lower"]
    assert not displaced[0].waits
    assert order(queue) == ["high", "low"]


def test_who_fills_the_queue_makes_room_for_who_has_little_in_it() -> None:
    queue: Queue[str] = Queue(max_length=3)
    for n in range(3):
        join(queue, f"greedy-{n}", tenant="greedy")
    waiting, displaced = join(queue, "modest-0", tenant="modest")
    assert waiting is not None
    assert [queued.item for queued in displaced] == ["greedy-2"]
    assert join(queue, "modest-1", tenant="modest") == (None, [])
    assert join(queue, "greedy-3", tenant="greedy") == (None, [])
    assert order(queue) == ["greedy-0", "greedy-1", "modest-0"]


def test_bytes_are_bounded_and_nothing_is_displaced_for_a_request_that_cannot_fit() -> None:
    queue: Queue[str] = Queue(max_bytes=250)
    join(queue, "a", tenant="one")
    join(queue, "b", tenant="one")
    assert queue.join("huge", "two", 0, 251, 0.0, 20.0) == (None, [])
    assert queue.join("large", "two", 0, 240, 0.0, 20.0) == (None, [])
    assert order(queue) == ["a", "b"]


def test_short_of_bytes_the_tenant_with_most_bytes_makes_room() -> None:
    queue: Queue[str] = Queue(max_bytes=1000)
    for n in range(5):
        queue.join(f"small-{n}", "small", 0, 1, 0.0, 20.0)
    for n in range(4):
        queue.join(f"large-{n}", "large", 0, 248, 0.0, 20.0)
    assert queue.join("large-4", "large", 0, 248, 0.0, 20.0) == (None, [])
    assert len(queue) == 9
    waiting, displaced = queue.join("small-5", "small", 0, 100, 0.0, 20.0)
    assert waiting is not None
    assert [queued.item for queued in displaced] == ["large-3"]
    waiting, displaced = queue.join("other", "other", 0, 300, 0.0, 20.0)
    assert waiting is not None
    assert [queued.item for queued in displaced] == ["large-2"]


def test_of_the_tenant_with_most_bytes_the_largest_request_makes_room() -> None:
    queue: Queue[str] = Queue(max_bytes=100)
    for name, size_bytes in (("tiny", 1), ("large", 90), ("tiny too", 9)):
        queue.join(name, "t", 0, size_bytes, 0.0, 20.0)
    _, displaced = queue.join("other", "other", 0, 50, 0.0, 20.0)
    assert [queued.item for queued in displaced] == ["large"]
    assert order(queue) == ["tiny", "tiny too", "other"]


def test_a_short_deadline_overtakes_only_requests_of_its_tenant() -> None:
    queue: Queue[str] = Queue()
    for n, (name, until) in enumerate([("mine", 20), ("theirs", 21), ("mine, urgent", 7), ("theirs, urgent", 8)]):
        join(queue, name, tenant=name.split(",")[0], at=float(n), until=until)
    assert order(queue) == ["mine, urgent", "theirs, urgent", "mine", "theirs"]
    assert queue.ahead_of("third", 0, 4.0, 4.5) == 4
    assert queue.ahead_of("mine", 0, 4.0, 4.5) == 0
    assert queue.ahead_of("mine", 0, 4.0, 19.0) == 2
    assert not queue.precedes(0, 4.0), "a request that takes no place may not use one"


JOINS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.floats(1.0, 20.0), st.booleans()), min_size=1, max_size=30
)


@given(JOINS)
def test_deadlines_do_not_change_which_tenant_is_next(joins: list[tuple[str, int, float, bool]]) -> None:
    """Compares with a queue in which all deadlines are equal, for any order of arrivals and departures."""
    urgent: Queue[str] = Queue()
    patient: Queue[str] = Queue()
    served: list[tuple[str, str]] = []

    def serve() -> None:
        pair = []
        for queue in (urgent, patient):
            place = queue.head()
            first = queue.request_at(place) if place is not None else None
            if first is not None:
                queue.leave(first)
                pair.append(first.item)
        if pair:
            served.append((pair[0], pair[1]))

    for at, (tenant, priority, wait_s, serves) in enumerate(joins):
        ahead = urgent.ahead_of(tenant, priority, float(at), at + wait_s)
        entry = entered(urgent.join(tenant, tenant, priority, 1, float(at), at + wait_s))
        assert urgent.in_order().index(entry) == ahead
        patient.join(tenant, tenant, priority, 1, float(at), 100.0 + at)
        if serves:
            serve()
    while len(urgent):
        serve()
    assert len(patient) == 0
    assert all(from_urgent == from_patient for from_urgent, from_patient in served)


@given(JOINS)
def test_the_requests_of_a_tenant_are_in_the_order_of_their_deadlines(
    joins: list[tuple[str, int, float, bool]],
) -> None:
    queue: Queue[int] = Queue()
    for at, (tenant, priority, wait_s, cancels) in enumerate(joins):
        queue.join(at, tenant, priority, 1, float(at), wait_s)
        if cancels:
            before = queue.in_order()
            gone = before.pop(at // 2 % len(before))
            queue.leave(gone)
            assert queue.in_order() == before, "a request that leaves changes the order of no other"
    for share in {queued.share for queued in queue.in_order()}:
        deadlines = [queued.urgency for queued in queue.in_order() if queued.share == share]
        assert deadlines == sorted(deadlines)


def test_how_long_one_waits_and_when_to_come_again() -> None:
    assert give_up_at(100.0, 103.0, 7.0) == 103.0
    assert give_up_at(100.0, 500.0, 7.0) == 107.0
    assert retry_after_s(2.0) == 1.0
    assert retry_after_s(20.0) == 10.0
    assert retry_after_s(90.0, 60.0) == 60.0
    assert retry_after_s(float("inf")) == MAX_RETRY_S


@given(st.floats(0.0, 1e6), st.integers())
def test_retry_after_is_neither_too_early_nor_too_late(wait_s: float, seed: int) -> None:
    times_s = spread_retry_after_s(wait_s, Random(seed))
    assert max(1.0, wait_s) <= times_s <= max(wait_s + 3, 1.5 * wait_s + 2)


@pytest.mark.parametrize(("wait_s", "times_s"), [(0.0, {1, 2, 3}), (1.2, {2, 3, 4}), (10.0, set(range(10, 16)))])
def test_requests_refused_together_get_spread_retry_times(wait_s: float, times_s: set[int]) -> None:
    rng = Random(1)
    assert {spread_retry_after_s(wait_s, rng) for _ in range(200)} == times_s
