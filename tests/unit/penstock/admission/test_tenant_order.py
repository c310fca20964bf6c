"""The order of waiting requests of one priority: fair among tenants, by urgency within a tenant."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.model_queue import ModelQueue
from penstock.admission.tenant_order import QueuedRequest, urgency_at
from penstock.policy.kinds.models import Queueing, QueueOrder

SHORTEST, DEADLINE, ARRIVAL = (Queueing(order) for order in QueueOrder)


def request(
    tenant: str, cost_s: float, at: float = 0.0, weight: float = 1.0, urgency: float = 0.0
) -> QueuedRequest[str]:
    return QueuedRequest(tenant, tenant, 0, 1, at, urgency or at, 1e9, cost_s, weight)


def start_next(queue: ModelQueue[str]) -> QueuedRequest[str]:
    """Start the next request, which ends at once."""
    first = next(queue.in_order())
    queue.start(first).end(first.cost_s, first.cost_s)
    return first


def test_tenants_alternate_by_cost() -> None:
    queue: ModelQueue[str] = ModelQueue()
    for number in range(4):
        queue.join(request("large", 4.0, float(number)), 0.0)
    for number in range(16):
        queue.join(request("small", 1.0, 10.0 + number), 0.0)
    served = "".join(start_next(queue).tenant[0] for _ in range(20))
    assert served == "lssssl" + "ssssl" * 2 + "ssss"


def test_an_idle_tenant_saves_up_nothing() -> None:
    queue: ModelQueue[str] = ModelQueue()
    for number in range(100):
        queue.join(request("busy", 1.0, float(number)), 0.0)
    for _ in range(50):
        start_next(queue)
    for number in range(50):
        queue.join(request("new", 1.0, 200.0 + number), 0.0)
    served = [start_next(queue).tenant for _ in range(20)]
    assert served.count("new") == 10


def test_a_tenant_that_joins_again_keeps_what_it_received() -> None:
    """A tenant with one request at a time would otherwise start anew with each."""
    queue: ModelQueue[str] = ModelQueue()
    for number in range(100):
        queue.join(request("many", 1.0, float(number)), 0.0)
    received: dict[str, float] = defaultdict(float)
    queue.join(request("one at a time", 10.0), 0.0)
    for number in range(60):
        first = start_next(queue)
        received[first.tenant] += first.cost_s
        if first.tenant == "one at a time":
            queue.join(request("one at a time", 10.0, 100.0 + number), 0.0)
    assert abs(received["many"] - received["one at a time"]) <= 11.0


BACKLOGS = st.lists(
    st.tuples(st.floats(0.1, 5.0), st.lists(st.floats(0.01, 100.0), min_size=1, max_size=20)), min_size=2, max_size=5
)


@given(BACKLOGS)
def test_tenants_with_backlog_receive_work_by_their_weights(backlogs: list[tuple[float, list[float]]]) -> None:
    """The bound of start-time fair queueing: the largest work of one request of each tenant, divided by its weight."""
    queue: ModelQueue[str] = ModelQueue()
    for number, (weight, costs) in enumerate(backlogs):
        for at, cost_s in enumerate(costs):
            queue.join(request(str(number), cost_s, float(at), weight, urgency=-cost_s), 0.0)
    received = [0.0] * len(backlogs)
    waiting = [len(costs) for _, costs in backlogs]
    bounds = [max(costs) / weight for weight, costs in backlogs]
    while len(queue):
        first = start_next(queue)
        index = int(first.tenant)
        received[index] += first.cost_s / first.weight
        waiting[index] -= 1
        with_backlog = [each for each, left in enumerate(waiting) if left]
        for one in with_backlog:
            for other in with_backlog:
                assert abs(received[one] - received[other]) <= bounds[one] + bounds[other] + 1e-6


@given(BACKLOGS, st.integers(0, 30))
def test_a_tenant_that_joins_later_is_served_as_if_all_began_then(
    backlogs: list[tuple[float, list[float]]], served_before: int
) -> None:
    queue: ModelQueue[str] = ModelQueue()
    for at in range(200):
        queue.join(request("busy", 1.0, float(at)), 0.0)
    for _ in range(served_before):
        start_next(queue)
    weight, costs = backlogs[0]
    for at, cost_s in enumerate(costs):
        queue.join(request("new", cost_s, 1000.0 + at, weight), 0.0)
    busy, new, left = 0.0, 0.0, len(costs)
    while left and len(queue) > left:
        first = start_next(queue)
        if first.tenant == "new":
            new, left = new + first.cost_s / weight, left - 1
        else:
            busy += 1.0
        if left:
            assert abs(busy - new) <= 2.0 + max(costs) / weight + 1e-6


@given(BACKLOGS, st.floats(0.01, 100.0), st.integers(0, 6))
def test_the_number_of_requests_ahead_is_exact_for_requests_of_equal_work(
    backlogs: list[tuple[float, list[float]]], until: float, received: int
) -> None:
    queue: ModelQueue[str] = ModelQueue()
    for number, (_, costs) in enumerate(backlogs):
        for at, urgency in enumerate(costs):
            queue.join(request(str(number), 1.0, float(at), urgency=urgency), 0.0)
    queue.counters.start(0, "0", 1.0, float(received), 0.0)
    new = request("0", 1.0, 1000.0, urgency=until)
    ahead = queue.ahead_of(new)
    queue.join(new, 0.0)
    started = 0
    while start_next(queue) is not new:
        started += 1
    assert abs(started - ahead) <= len(backlogs) - 1, "tenants that received as much are ordered by arrival"


def test_a_request_that_left_counts_no_more_in_the_work_of_its_tenant() -> None:
    queue: ModelQueue[str] = ModelQueue()
    large = request("other", 10.0)
    for each in (request("one", 5.0), large, *(request("other", 1.0) for _ in range(3))):
        queue.join(each, 0.0)
    queue.leave(large)
    assert queue.ahead_of(request("one", 5.0, 1.0)) == 4


def test_each_order_serves_another_request_first() -> None:
    requests = {"old": (0.0, 20.0, 9.0), "short": (3.0, 23.0, 0.1), "urgent": (4.0, 18.0, 9.0)}
    for queueing, served in (
        (SHORTEST, ["short", "urgent", "old"]),
        (DEADLINE, ["urgent", "old", "short"]),
        (ARRIVAL, ["old", "short", "urgent"]),
    ):
        queue: ModelQueue[str] = ModelQueue()
        for name, (arrived_at, until, work_s) in requests.items():
            urgency = urgency_at(queueing, arrived_at, until, work_s, 5.0)
            queue.join(QueuedRequest(name, "tenant", 0, 1, arrived_at, urgency, until), arrived_at)
        assert [waiting.item for waiting in queue.in_order()] == served


def test_the_shortest_of_short_requests_is_served_first() -> None:
    queue: ModelQueue[str] = ModelQueue()
    for work_s in (0.9, 0.1, 0.5, 0.0):
        urgency = urgency_at(SHORTEST, 0.0, 20.0, work_s, 5.0)
        queue.join(QueuedRequest(f"{work_s:g}", "tenant", 0, 1, 0.0, urgency, 20.0, work_s), 0.0)
    assert [waiting.item for waiting in queue.in_order()] == ["0", "0.1", "0.5", "0.9"]


@pytest.mark.parametrize("tenant", ["one", "other"])
def test_less_work_overtakes_only_requests_of_its_tenant(tenant: str) -> None:
    queue: ModelQueue[str] = ModelQueue()
    for number, (name, work_s) in enumerate([("one", 9.0), (tenant, 1.0)]):
        urgency = urgency_at(SHORTEST, number, number + 20.0, work_s, 5.0)
        queue.join(QueuedRequest(f"{work_s:g}", name, 0, 1, number, urgency, number + 20.0, work_s), number)
    assert next(queue.in_order()).item == ("1" if tenant == "one" else "9")


@pytest.mark.parametrize("queueing", [SHORTEST, DEADLINE])
def test_a_short_timeout_overtakes_only_requests_of_its_tenant(queueing: Queueing) -> None:
    queue: ModelQueue[str] = ModelQueue()
    for number, (tenant, timeout_s) in enumerate([("one", 600.0), ("other", 600.0), ("one", 1.0), ("other", 1.0)]):
        urgency = urgency_at(queueing, number, number + timeout_s, 1.0, 5.0)
        queue.join(QueuedRequest(f"{tenant} {timeout_s:g}", tenant, 0, 1, number, urgency, 1e9, 1.0), number)
    assert [start_next(queue).item for _ in range(4)] == ["one 1", "other 1", "one 600", "other 600"]


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
