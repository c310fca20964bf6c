"""The order of a tenant's waiting requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.queue_order import urgency_at
from penstock.admission.queueing import Queue
from penstock.policy.kinds.models import Queueing, QueueOrder

SHORTEST, DEADLINE, ARRIVAL = (Queueing(order) for order in QueueOrder)


def test_each_order_serves_another_request_first() -> None:
    requests = {"old": (0.0, 20.0, 9.0), "short": (3.0, 23.0, 0.1), "urgent": (4.0, 18.0, 9.0)}
    for queueing, served in (
        (SHORTEST, ["short", "urgent", "old"]),
        (DEADLINE, ["urgent", "old", "short"]),
        (ARRIVAL, ["old", "short", "urgent"]),
    ):
        queue: Queue[str] = Queue()
        for name, (arrived_at, until, work_s) in requests.items():
            urgency = urgency_at(queueing, arrived_at, until, work_s, 5.0)
            queue.join(name, "tenant", 0, 1, arrived_at, until, urgency_at=urgency)
        assert [waiting.item for waiting in queue.in_order()] == served


def test_work_does_not_overtake_other_tenants() -> None:
    queue: Queue[str] = Queue()
    for number, tenant in enumerate(("one", "other", "one")):
        work_s = 9.0 - 4.0 * number
        urgency = urgency_at(SHORTEST, number, number + 20.0, work_s, 5.0)
        queue.join(f"{tenant} {work_s:g}", tenant, 0, 1, number, number + 20.0, urgency_at=urgency)
    assert [waiting.item for waiting in queue.in_order()] == ["one 1", "other 5", "one 9"]


@given(st.floats(0, 1e6), st.floats(0, 3600), st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0.001, 3600))
def test_nothing_is_overtaken_by_what_arrives_later_than_the_bound(
    arrived_at: float, bound_s: float, work_s: float, other_s: float, usual_s: float
) -> None:
    queueing = Queueing(QueueOrder.SHORTEST, bound_s)
    late = arrived_at + bound_s
    assert (
        urgency_at(queueing, arrived_at, arrived_at + 20.0, work_s, usual_s)
        <= urgency_at(queueing, late, late + 20.0, other_s, usual_s) + 1e-6
    )
