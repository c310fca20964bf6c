"""The order of the waiting requests of one tenant and priority, by the model's policy."""

from __future__ import annotations

from penstock.policy.policy import Queueing, QueueOrder


def urgency_at(queueing: Queueing, arrived_at: float, give_up_at: float, work_s: float, usual_s: float) -> float:
    """The time (s, the clock of `arrived_at`) by which requests are ordered: the smallest is served first.

    Shortest first minimises the mean wait (Smith, "Various optimizers for single-stage production", 1956), and starves
    long requests under load. Here work only postpones a request, by less than `max_overtaken_s`: no request is
    overtaken by one that arrives later than that, deadlines being equal. The postponement is work / (work + usual
    work), so that it depends little on the scale of the estimates (docs/bench.md has figures).

    Args:
        arrived_at: when the request arrived.
        give_up_at: until when it may wait.
        work_s: its expected work.
        usual_s: expected work of a usual request for the model.
    """
    if queueing.order is QueueOrder.ARRIVAL:
        return arrived_at
    if queueing.order is QueueOrder.DEADLINE or work_s <= 0.0:
        return give_up_at
    return give_up_at + queueing.max_overtaken_s * work_s / (work_s + usual_s)
