"""The order of the waiting requests of one tenant and priority, by the model's policy."""

from __future__ import annotations

from penstock.policy.kinds.models import Queueing, QueueOrder


def urgency_at(queueing: Queueing, arrived_at: float, give_up_at: float, work_s: float, usual_s: float) -> float:
    """Return the time (s, the clock of `arrived_at`) by which requests are ordered: the smallest is served first.

    Shortest first minimises the mean wait (Smith, "Various optimizers for single-stage production", 1956), and starves
    long requests under load. In this order, work only postpones a request, by at most `max_overtaken_s`: if both
    requests may wait equally long, a request that arrives more than that time later does not overtake. The postponement
    is `max_overtaken_s` times work / (work + usual work), so that it depends little on the scale of the estimates
    (docs/bench.md has figures).

    Args:
        arrived_at: arrival time of the request.
        give_up_at: time until which the request may wait.
        work_s: expected work of the request.
        usual_s: expected work of a usual request for the model.
    """
    if queueing.order is QueueOrder.ARRIVAL:
        return arrived_at
    if queueing.order is QueueOrder.DEADLINE or work_s <= 0.0:
        return give_up_at
    return give_up_at + queueing.max_overtaken_s * work_s / (work_s + usual_s)
