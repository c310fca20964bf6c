"""The explanation of an admission queue: its tenants in order, with what decides about the order."""

from __future__ import annotations

from penstock.admission.model_queue import ModelQueue, NextReason, QueueHead
from penstock.admission.queue_explanation import (
    QueuedTenant,
    QueueExplanation,
    explain_queue,
)
from penstock.admission.tenant_order import QueuedRequest

MAX_TENANTS = 20
"""As documented, and not imported: a test fails if a tuned constant changes."""


def queue_of(*requests: tuple[str, int, float, float]) -> ModelQueue[str]:
    """Requests by tenant, priority, weight and arrival, of 2 s of work each."""
    queue: ModelQueue[str] = ModelQueue()
    for tenant, priority, weight, at in requests:
        queue.join(QueuedRequest(tenant, tenant, priority, 1, at, at, 1e9, 2.0, weight), at)
    return queue


def test_the_tenants_are_in_the_order_of_their_next_requests() -> None:
    queue = queue_of(("a", 0, 1.0, 1.0), ("a", 0, 1.0, 2.0), ("b", 0, 3.0, 3.0), ("urgent", 5, 1.0, 4.0))
    queue.counters.started_elsewhere(0, "a", 0.5, 4.0)
    found = explain_queue(queue, (), 10.0, has_room=True)
    assert found == QueueExplanation(
        4,
        NextReason.PRIORITY,
        (
            QueuedTenant("urgent", 5, 1, 6.0, 2.0),
            QueuedTenant("b", 0, 1, 7.0, 2.0, 3.0, 0.75, 0.0),
            QueuedTenant("a", 0, 2, 9.0, 4.0, 1.0, 0.25, 0.5),
        ),
    )
    assert explain_queue(queue, (), 10.0, has_room=True) == found, "it changes nothing"
    assert explain_queue(queue, (), 0.0, has_room=True).tenants[0].longest_wait_s == 0.0


def test_what_tenants_received_is_shown_beyond_the_least() -> None:
    queue = queue_of(("a", 0, 1.0, 1.0), ("b", 0, 1.0, 2.0))
    for tenant, work_s in (("a", 7.0), ("b", 3.0)):
        queue.counters.started_elsewhere(0, tenant, work_s, 4.0)
    found = explain_queue(queue, (), 10.0, has_room=True).tenants
    assert [(each.tenant, each.longest_wait_s, each.ahead_s) for each in found] == [("b", 8.0, 0.0), ("a", 9.0, 4.0)]


def test_why_no_request_is_offered() -> None:
    queue = queue_of(("a", 0, 1.0, 1.0))
    assert explain_queue(queue, (), 2.0, has_room=False).why == NextReason.NO_ROOM
    assert explain_queue(queue, (QueueHead(-1, 0.0, 0.0, 9),), 2.0, has_room=True).why == NextReason.OTHER_AGENT
    assert explain_queue(ModelQueue(), (), 2.0, has_room=True) == QueueExplanation(0, NextReason.NO_TARGET, ())


def test_the_number_of_tenants_is_bounded() -> None:
    queue = queue_of(*((f"t{number}", 0, 1.0, float(number)) for number in range(25)))
    found = explain_queue(queue, (), 30.0, has_room=True)
    assert [each.tenant for each in found.tenants] == [f"t{number}" for number in range(20)]
    assert (found.requests, MAX_TENANTS) == (25, 20)
    assert found.tenants[0].share == 1 / 25
