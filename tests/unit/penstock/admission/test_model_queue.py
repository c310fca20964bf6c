"""The admission queue of one model: order, bounds, displacement, and turns among the agents of a region."""

from __future__ import annotations

import weakref
from math import inf
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.model_queue import ModelQueue, NextReason, Pass, QueueHead, remote_head
from penstock.admission.tenant_order import QueuedRequest
from penstock.admission.work_counters import ModelCounters

TURN_RANK = 2_000
PASSED_OVER_S = 1.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def queued(
    item: Any, *, tenant: str = "t", priority: int = 0, at: float = 0.0, until: float = 20.0, **more: Any
) -> Any:
    size_bytes, leave_at = more.pop("size_bytes", 100), more.pop("leave_at", until)
    return QueuedRequest(item, tenant, priority, size_bytes, at, until, leave_at, **more)


def join(queue: ModelQueue[Any], item: Any, **fields: Any) -> QueuedRequest[Any]:
    request: QueuedRequest[Any] = queued(item, **fields)
    assert queue.join(request, request.arrived_at) == []
    return request


def order(queue: ModelQueue[Any]) -> list[Any]:
    return [waiting.item for waiting in queue.in_order()]


def displaced(queue: ModelQueue[Any], item: Any, **fields: Any) -> list[Any] | None:
    victims = queue.join(queued(item, **fields), 0.0)
    return None if victims is None else [victim.item for victim in victims]


def test_priority_first_then_the_earliest_deadline_then_the_first_to_arrive() -> None:
    queue: ModelQueue[str] = ModelQueue()
    join(queue, "late", until=30)
    join(queue, "first", until=20)
    join(queue, "second", until=20)
    join(queue, "urgent", priority=5, until=90)
    assert order(queue) == ["urgent", "first", "second", "late"]
    assert queue.ahead_of(queued("", until=20)) == 3
    assert queue.ahead_of(queued("", priority=5, until=10)) == 0
    assert queue.ahead_of(queued("", priority=-1, until=10)) == 4


def test_a_second_removal_has_no_effect() -> None:
    queue: ModelQueue[str] = ModelQueue()
    first, _ = join(queue, "one"), join(queue, "two")
    queue.leave(first)
    queue.leave(first)
    assert order(queue) == ["two"]


def test_requests_whose_maximum_wait_has_passed_expire() -> None:
    queue: ModelQueue[str] = ModelQueue()
    gone = join(queue, "gone", until=1)
    join(queue, "soon", until=2)
    join(queue, "later", priority=9, until=3)
    queue.leave(gone)
    assert queue.expire(1.5) == []
    assert [request.item for request in queue.expire(2.5)] == ["soon"]
    assert queue.expire(2.5) == []
    assert [request.item for request in queue.expire(3.0)] == ["later"]
    assert len(queue) == 0


def test_a_request_that_left_is_not_kept_in_memory() -> None:
    class Body:
        """A body that is held in memory."""

    queue: ModelQueue[Body] = ModelQueue()
    requests = [join(queue, Body(), until=20.0 + at) for at in range(100)]
    held = [weakref.ref(request.item) for request in requests]
    for request in requests[1:]:
        queue.leave(request)
    del request, requests[1:]
    assert sum(body() is not None for body in held) <= 3, "the one that waits, and entries removed later together"
    queue.leave(requests.pop())
    assert [body() for body in held] == [None] * 100


def test_displacement_in_vain_changes_nothing() -> None:
    queue: ModelQueue[str] = ModelQueue(max_bytes=300)
    for name, priority in (("low", 0), ("high", 1), ("higher", 1)):
        join(queue, name, priority=priority)
    heads = [queue.head_of(request) for request in queue.in_order()]
    assert displaced(queue, "huge", tenant="other", priority=1, size_bytes=300) is None
    assert [queue.head_of(request) for request in queue.in_order()] == heads
    assert order(queue) == ["high", "higher", "low"]
    assert [request.item for request in queue.expire(30.0)] == ["low", "high", "higher"]


def test_an_early_departure_does_not_make_a_request_more_urgent() -> None:
    queue: ModelQueue[str] = ModelQueue()
    join(queue, "first", until=20)
    join(queue, "early", until=21, leave_at=1.0)
    assert order(queue) == ["first", "early"]
    assert queue.expire(0.9) == []
    assert [request.item for request in queue.expire(1.0)] == ["early"]
    assert queue.expire(19.9) == []
    assert [request.item for request in queue.expire(20.0)] == ["first"]


def test_a_full_queue_refuses_a_further_request_of_its_tenant() -> None:
    queue: ModelQueue[str] = ModelQueue(max_length=2)
    join(queue, "a")
    join(queue, "b")
    assert displaced(queue, "c") is None
    assert order(queue) == ["a", "b"]


def test_a_higher_priority_displaces_the_last_of_the_lowest() -> None:
    queue: ModelQueue[str] = ModelQueue(max_length=2)
    join(queue, "low")
    lower = join(queue, "lower", priority=-1)
    assert displaced(queue, "high", priority=1) == ["lower"]
    assert not lower.waits
    assert order(queue) == ["high", "low"]


def test_the_tenant_that_fills_the_queue_is_displaced_for_one_with_fewer_requests() -> None:
    queue: ModelQueue[str] = ModelQueue(max_length=3)
    for n in range(3):
        join(queue, f"greedy-{n}", tenant="greedy")
    assert displaced(queue, "modest-0", tenant="modest") == ["greedy-2"]
    assert displaced(queue, "modest-1", tenant="modest") is None
    assert displaced(queue, "greedy-3", tenant="greedy") is None
    assert sorted(order(queue)) == ["greedy-0", "greedy-1", "modest-0"]


def test_bytes_are_bounded_and_nothing_is_displaced_for_a_request_that_cannot_fit() -> None:
    queue: ModelQueue[str] = ModelQueue(max_bytes=250)
    join(queue, "a", tenant="one")
    join(queue, "b", tenant="one")
    assert displaced(queue, "huge", tenant="two", size_bytes=251) is None
    assert displaced(queue, "large", tenant="two", size_bytes=240) is None
    assert order(queue) == ["a", "b"]


def test_if_bytes_are_short_the_tenant_with_most_bytes_is_displaced() -> None:
    queue: ModelQueue[str] = ModelQueue(max_bytes=1000)
    for n in range(5):
        join(queue, f"small-{n}", tenant="small", size_bytes=1)
    for n in range(4):
        join(queue, f"large-{n}", tenant="large", size_bytes=248)
    assert displaced(queue, "large-4", tenant="large", size_bytes=248) is None
    assert len(queue) == 9
    assert displaced(queue, "small-5", tenant="small", size_bytes=100) == ["large-3"]
    assert displaced(queue, "other", tenant="other", size_bytes=300) == ["large-2"]


def test_of_the_tenant_with_most_bytes_the_largest_request_is_displaced() -> None:
    queue: ModelQueue[str] = ModelQueue(max_bytes=100)
    for name, size_bytes in (("tiny", 1), ("large", 90), ("tiny too", 9)):
        join(queue, name, size_bytes=size_bytes)
    assert displaced(queue, "other", tenant="other", size_bytes=50) == ["large"]
    assert order(queue) == ["tiny", "tiny too", "other"]


def test_a_short_deadline_overtakes_only_requests_of_its_tenant() -> None:
    queue: ModelQueue[str] = ModelQueue()
    for n, (name, until) in enumerate([("mine", 20), ("theirs", 21), ("mine, urgent", 7), ("theirs, urgent", 8)]):
        join(queue, name, tenant=name.split(",")[0], at=float(n), until=until)
    assert [head.item for head in taken(queue)] == ["mine, urgent", "theirs, urgent", "mine", "theirs"]


def taken(queue: ModelQueue[Any]) -> list[QueuedRequest[Any]]:
    """Start every request, in order."""
    started = []
    for request in queue.in_order():
        queue.start(request)
        started.append(request)
    return started


JOINS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.floats(1.0, 20.0), st.booleans()), min_size=1, max_size=30
)


@given(JOINS)
def test_deadlines_do_not_change_which_tenant_is_next(joins: list[tuple[str, int, float, bool]]) -> None:
    """Compares with a queue in which all deadlines are equal, for any order of arrivals and departures."""
    urgent: ModelQueue[str] = ModelQueue()
    patient: ModelQueue[str] = ModelQueue()
    served: list[tuple[str, ...]] = []

    def serve() -> None:
        firsts = [next(queue.in_order(), None) for queue in (urgent, patient)]
        assert urgent.head() == patient.head()
        for queue, first in zip((urgent, patient), firsts, strict=True):
            if first is not None:
                queue.start(first)
        served.append(tuple(first.item for first in firsts if first is not None))

    for at, (tenant, priority, wait_s, serves) in enumerate(joins):
        join(urgent, tenant, tenant=tenant, priority=priority, at=float(at), until=at + wait_s, cost_s=1.0)
        join(patient, tenant, tenant=tenant, priority=priority, at=float(at), until=100.0 + at, cost_s=1.0)
        if serves:
            serve()
    while len(urgent):
        serve()
    assert len(patient) == 0
    assert all(pair[0] == pair[1] for pair in served)


@given(JOINS)
def test_the_requests_of_a_tenant_are_in_the_order_of_their_deadlines(
    joins: list[tuple[str, int, float, bool]],
) -> None:
    queue: ModelQueue[int] = ModelQueue()
    for at, (tenant, priority, wait_s, cancels) in enumerate(joins):
        join(queue, at, tenant=tenant, priority=priority, at=float(at), until=wait_s, cost_s=wait_s)
        if cancels:
            before = list(queue.in_order())
            gone = before.pop(at // 2 % len(before))
            queue.leave(gone)
            assert set(map(id, queue.in_order())) == set(map(id, before))
    requests = list(queue.in_order())
    assert len(requests) == len(queue)
    for share in {(request.priority, request.tenant) for request in requests}:
        deadlines = [request.urgency for request in requests if (request.priority, request.tenant) == share]
        assert deadlines == sorted(deadlines)


OWN = QueueHead(0, 0.0, 5.0, 1)


def test_the_agent_whose_head_has_waited_longest_takes_the_slot() -> None:
    queue: ModelQueue[str] = ModelQueue()
    older, younger, urgent = QueueHead(0, 0.0, 4.0, 2), QueueHead(0, 0.0, 6.0, 3), QueueHead(-3, 0.0, 9.0, 4)
    assert queue.first_of_agents(OWN, [], 0.0) is None
    assert queue.first_of_agents(OWN, [younger], 0.0) is None
    assert queue.first_of_agents(OWN, [younger, older], 0.0) == older
    assert queue.first_of_agents(OWN, [older, urgent], 0.0) == urgent
    # The agent reports a tenant that has received more work.
    assert queue.first_of_agents(OWN, [older._replace(received_s=1.0, tenant="t")], 0.0) is None
    assert queue.first_of_agents(OWN, [older._replace(received_s=1.0)], 0.0) is not None


def test_a_head_states_priority_work_arrival_and_number() -> None:
    queue: ModelQueue[str] = ModelQueue(numbers_from=1000)
    assert queue.head() is None
    queue.counters.start(3, "t", 1.0, 2.0, 0.0)
    join(queue, "low", at=1.0)
    join(queue, "first", priority=3, at=2.0)
    last = join(queue, "last", priority=3, at=3.0, until=90.0)
    assert queue.head() == QueueHead(-3, 2.0, 2.0, 1002, "t")
    assert queue.head_of(last) == QueueHead(-3, 2.0, 3.0, 1003, "t")
    assert queue.head_of(last, has_turn=True) == QueueHead(-TURN_RANK, 0.0, 3.0, 1003, "t")
    assert queue.highest() == 3
    assert [(priority, own.tenant) for priority, own in queue.tenants_in_order()] == [(3, "t"), (0, "t")]


def test_a_head_that_does_not_use_its_turn_is_skipped_for_a_while() -> None:
    queue: ModelQueue[str] = ModelQueue()
    dead, live = QueueHead(0, 0.0, 3.0, 2), QueueHead(0, 0.0, 4.0, 3)
    queue.pass_over(dead, 10.0)
    assert queue.first_of_agents(OWN, [dead], 10.0) is None
    assert queue.first_of_agents(OWN, [dead._replace(since=3.2)], 10.1) is None, "a new report of the same one"
    assert queue.first_of_agents(OWN, [dead, live], 10.1) == live
    queue.pass_over(live, 10.2)
    assert queue.first_of_agents(OWN, [dead, live], 10.3) is None, "two dead agents delay nothing either"
    assert queue.first_of_agents(OWN, [dead._replace(which=9)], 10.3) is not None, "its next one has its own turn"
    assert queue.first_of_agents(OWN, [dead], 9.99 + PASSED_OVER_S) is None
    assert queue.first_of_agents(OWN, [dead, live], 10.0 + PASSED_OVER_S) == dead


class Slots:
    """Dispatches requests by name while slots are free; the first letter of a name is the group."""

    def __init__(self, free: int, *heads: QueueHead, without_target: str = "") -> None:
        self.free = free
        self.heads = heads
        self.without_target = without_target
        self.asked: list[str] = []
        self.placed: list[str] = []

    def serve(self, queue: ModelQueue[str], now: float = 5.0, *, elsewhere: bool = False) -> tuple[NextReason, Any]:
        """Run a pass; returns why it ended, and the head to which the slots are left."""
        offers = Pass(queue, self.heads, elsewhere=elsewhere)
        while (request := (offer := offers.next(now, has_room=self.free > 0)).request) is not None:
            self.asked.append(request.item)
            if request.item[0] in self.without_target:
                offers.no_target(request)
                continue
            queue.start(request)
            self.free -= 1
            self.placed.append(request.item)
        return offer.why, offer.left_to


def queue_of(*names: str) -> ModelQueue[str]:
    made: ModelQueue[str] = ModelQueue(group_of=lambda item: item[0])
    for since, name in enumerate(names):
        join(made, name, at=float(since), until=100.0 + since, rests_until=9.0 if name.endswith("rests") else 0.0)
    return made


def test_requests_are_dispatched_in_order_while_there_is_room() -> None:
    waiting, slots = queue_of("a1", "a2", "a3"), Slots(2)
    assert slots.serve(waiting) == (NextReason.NO_ROOM, None)
    assert (slots.placed, slots.asked, len(waiting)) == (["a1", "a2"], ["a1", "a2"], 1)


def test_a_group_without_target_is_tried_once_and_delays_no_other() -> None:
    waiting, slots = queue_of("a1", "a2", "b1 rests", "b2"), Slots(2, without_target="a")
    assert slots.serve(waiting) == (NextReason.NO_TARGET, None)
    assert (slots.asked, slots.placed) == (["a1", "b2"], ["b2"])


def test_a_pass_ends_after_a_bounded_number_of_requests_without_target() -> None:
    waiting, slots = queue_of(*(f"{chr(ord('a') + n)}" for n in range(20))), Slots(2, without_target="abcdefghijklmnop")
    slots.serve(waiting)
    assert len(slots.asked) == 8


def test_a_slot_is_left_to_an_older_head_elsewhere_until_its_turn_is_over() -> None:
    older = QueueHead(0, 0.0, -1.0, 99)
    waiting, slots = queue_of("a1"), Slots(1, older)
    assert slots.serve(waiting) == (NextReason.OTHER_AGENT, older)
    waiting.pass_over(older, 5.0)
    assert slots.serve(waiting) == (NextReason.NO_TARGET, None)
    assert slots.placed == ["a1"]


def test_requests_may_leave_a_full_region_in_a_pass_for_credits() -> None:
    waiting, slots = queue_of("a1", "b1"), Slots(0, without_target="a")
    assert slots.serve(waiting) == (NextReason.NO_ROOM, None)
    slots.serve(waiting, elsewhere=True)
    assert slots.placed == ["b1"]


def test_a_pass_states_why_a_request_is_next() -> None:
    queue: ModelQueue[str] = ModelQueue()

    def why() -> NextReason:
        return Pass(queue, ()).next(0.0, has_room=True).why

    join(queue, "one")
    assert why() is NextReason.ONLY_TENANT
    join(queue, "urgent", priority=1)
    assert why() is NextReason.PRIORITY
    join(queue, "other", tenant="other", priority=1)
    assert why() is NextReason.SHARE


def test_a_new_request_queues_behind_those_that_precede_it_at_any_agent() -> None:
    elsewhere = [QueueHead(-1, 0.0, 0.0, 7)]
    assert queue_of().must_queue(1, 50.0, elsewhere)
    assert not queue_of().must_queue(2, 50.0, elsewhere)
    assert queue_of("a1").must_queue(0, 0.0, ())
    assert not queue_of("a1").must_queue(1, 0.0, ())
    assert queue_of("a1").must_queue(-1, -inf, ())
    assert not queue_of("a1").must_queue(0, -1.0, ()), "it arrived earlier and is tried again"


def test_a_head_of_another_agent_is_ordered_by_the_counters_of_this_one() -> None:
    counters = ModelCounters()
    held = counters.start(3, "t", 2.0, 4.0, 0.0)
    assert held.received_s > 0.0
    assert remote_head(counters, -3, "t", 7.0, 9) == QueueHead(-3, held.received_s, 7.0, 9, "t")
    assert remote_head(counters, -2, "t", 7.0, 9) == QueueHead(-2, 0.0, 7.0, 9, "t")
