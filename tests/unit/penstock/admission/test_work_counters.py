"""All work that starts counts, estimates are corrected, idle time saves up nothing, and memory is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.model_queue import ModelQueue
from penstock.admission.tenant_order import QueuedRequest
from penstock.admission.work_counters import ModelCounters, WorkCounters

MAX_TENANTS, MIN_SWEEP, SHARED_S = 1_024, 64, 10.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def queued(tenant: str, at: float, cost_s: float = 1.0, weight: float = 1.0) -> QueuedRequest[str]:
    return QueuedRequest(tenant, tenant, 0, 1, at, at, 1e9, cost_s, weight)


def start_next(queue: ModelQueue[str]) -> str:
    first = next(queue.in_order())
    queue.start(first).end(first.cost_s, first.cost_s)
    return first.tenant


def test_requests_that_start_without_waiting_count() -> None:
    queue: ModelQueue[str] = ModelQueue()
    running = queue.counters.start(0, "large", 1.0, 0.1, 0.0)
    queue.counters.start(0, "large", 1.0, 5.0, 0.0).end(5.0, 5.0)
    for number in range(9):
        queue.join(queued("large", float(number)), 0.0)
        queue.join(queued("small", 100.0 + number), 0.0)
    served = [start_next(queue) for _ in range(7)]
    assert served == ["small"] * 5 + ["large", "small"], "the small one is first until it has received as much"
    running.end(0.1, 0.1)


def test_the_estimate_is_replaced_by_what_was_used() -> None:
    counters = WorkCounters()
    blocker = counters.start("other", 1.0, 0.5)
    counter = counters.start("a", 2.0, 4.0)
    before = counter.received_s
    counter.end(4.0, 1.0)
    assert counter.received_s == before - 1.5
    assert counter.running == 0
    blocker.end(0.5, 0.5)
    assert counters.running == 0


def test_work_while_no_other_request_waited_or_ran_is_no_debt() -> None:
    counters = WorkCounters()
    counters.start("a", 1.0, 300.0).end(300.0, 300.0)
    held = counters.start("b", 1.0, 1.0)
    assert counters.received_s("a") <= held.received_s


@pytest.mark.parametrize("weight", [0.5, 1.0, 3.0])
def test_a_newcomer_starts_where_the_others_are(weight: float) -> None:
    counters = WorkCounters()
    for _ in range(100):
        counters.start("busy", 1.0, 1.0).end(1.0, 1.0)
    assert counters.join("new", weight).received_s == pytest.approx(counters.tenants["busy"].received_s, abs=1.0)


def test_tenants_that_are_level_with_the_others_are_forgotten() -> None:
    counters = WorkCounters()
    busy = counters.join("stays", 1.0)
    for number in range(10_000):
        counters.start(f"tenant-{number}", 1.0, 0.001).end(0.001, 0.001)
        counters.start("stays", 1.0, 1.0).end(1.0, 1.0)
    assert len(counters.tenants) <= 2 * MIN_SWEEP
    assert len(counters.changed) <= 2 * MIN_SWEEP
    assert all(counters.tenants[each.tenant] is each for each in counters.changed)
    assert busy in counters.changed
    counters.leave(busy)


def test_a_sweep_leaves_room_for_as_many_tenants_as_it_kept() -> None:
    counters = WorkCounters()
    for number in range(10 * MIN_SWEEP):
        counters.join(f"tenant-{number}", 1.0)
    swept_at = [counters._sweep_at]
    assert swept_at == [16 * MIN_SWEEP]


def test_of_many_tenants_those_with_the_least_work_are_forgotten() -> None:
    counters = WorkCounters()
    counters.join("stays", 1.0)
    counters.start("large", 1.0, 1e6).end(1e6, 1e6)
    for number in range(5 * MAX_TENANTS):
        counters.start(f"tenant-{number}", 1.0, 1.0 + number).end(1.0, 1.0)
    assert len(counters.tenants) <= 2 * MAX_TENANTS
    assert "large" in counters.tenants
    assert "stays" in counters.tenants, "its request waits"


def test_work_at_another_agent_counts_for_its_tenant_and_the_virtual_time() -> None:
    counters = WorkCounters()
    counters.join("here", 1.0)
    counters.started_elsewhere("both", 3.0)
    counters.started_elsewhere("both", -1.0)
    assert counters.received_s("both") == 2.0
    assert counters.received_s("here") == 0.0
    for _ in range(5):
        counters.started_elsewhere("other", 1.0)
    assert counters.join("new", 1.0).received_s == 4.0
    assert counters.received_s("here") == 0.0, "it waits, and keeps its place"
    assert [each.tenant for each in counters.changed] == [], "agents publish only what they start themselves"


KINDS = ("start", "end", "join", "leave", "elsewhere")


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from("abc"), st.integers(0, 9)), max_size=40))
def test_counts_are_those_of_the_tenants_and_idle_time_saves_up_nothing(steps: list[tuple[str, str, int]]) -> None:
    counters, running = WorkCounters(), {tenant: [] for tenant in "abc"}
    for kind, tenant, work_s in steps:
        counter, virtual_s = counters.tenants.get(tenant), counters.virtual_s
        is_idle = counter is None or not (counter.running or counter.waits)
        before_s = virtual_s if counter is None else counter.received_s
        if kind == "start":
            level_s = counters.highest_s if not counters.running and not counters.waiting else virtual_s
            found = counters.start(tenant, 1.0, float(work_s))
            if counter is None or not counter.waits:
                assert found.received_s == max(before_s, level_s) + work_s
            running[tenant].append((found, work_s))
        elif kind == "end" and running[tenant]:
            found, charged_s = running[tenant].pop()
            found.end(charged_s, charged_s / 2.0)
        elif kind == "join":
            assert counters.join(tenant, 1.0).received_s >= virtual_s or (counter is not None and counter.waits)
        elif kind == "leave" and counter is not None:
            counters.leave(counter)
        elif kind == "elsewhere":
            counters.started_elsewhere(tenant, float(work_s))
            level_s = virtual_s if is_idle else before_s
            assert counters.tenants[tenant].received_s == max(before_s, level_s) + work_s
        everyone = counters.tenants.values()
        assert counters.waiting == sum(each.waits for each in everyone)
        assert counters.running == sum(each.running for each in everyone)
        assert counters.highest_s >= max((each.received_s for each in everyone), default=0.0)
        assert [each.tenant for each in counters.changed] == list(
            dict.fromkeys(each.tenant for each in counters.changed)
        )
        assert all(each.has_changed for each in counters.changed)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.booleans()), max_size=12), st.integers(0, 12))
def test_a_model_is_shared_while_another_tenant_had_a_request_lately(
    requests: list[tuple[str, int, bool]], later_s: int
) -> None:
    counters, now, seen = ModelCounters(), 100.0, []
    for tenant, pause_s, is_here in requests:
        now += pause_s
        if is_here:
            counters.start(0, tenant, 1.0, 1.0, now)
        else:
            counters.started_elsewhere(0, tenant, 1.0, now)
        seen.append((tenant, now))
    now += later_s
    for tenant in "abcd":
        is_shared = any(other != tenant and now - at < SHARED_S for other, at in seen)
        assert counters.is_shared(tenant, now) is is_shared
