"""Explains the admission queue of a model to operators: which tenant is next, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.admission.model_queue import ModelQueue, Pass, QueueHead

MAX_TENANTS = 20
"""Maximum number of tenants in an explanation."""


class QueuedTenant(msgspec.Struct, frozen=True):
    """The waiting requests of one tenant with one priority."""

    tenant: str
    priority: int
    requests: int
    longest_wait_s: float
    """Time (s) since the oldest of the requests arrived."""
    work_s: float
    """Estimated work (s) of the requests."""
    weight: float = 1.0
    share: float = 1.0
    """Share (0-1) of the work of its priority, while the tenants of the priority that wait now have backlog."""
    ahead_s: float = 0.0
    """Work (s, for its weight) that the tenant has received beyond the tenant of its priority with the least."""


class QueueExplanation(msgspec.Struct, frozen=True):
    """The admission queue of a model at one agent."""

    requests: int
    why: str
    """Why the first of `tenants` is next; or why no request is offered to a target now."""
    tenants: tuple[QueuedTenant, ...]
    """The tenants in the order of their next requests; at most MAX_TENANTS."""


def explain_queue(
    queue: ModelQueue[Any], others: Sequence[QueueHead], now: float, *, has_room: bool
) -> QueueExplanation:
    """Explain a queue. Changes nothing.

    Args:
        others: heads of the queues of the region's other agents.
        has_room: whether an endpoint of the region may take one more request.
    """
    why = Pass(queue, others, now).next(now, has_room=has_room).why
    every = queue.tenants_in_order()
    weights: dict[int, float] = {}
    least_s: dict[int, float] = {}
    for priority, own in every:
        weights[priority] = weights.get(priority, 0.0) + own.counter.weight
        least_s.setdefault(priority, own.counter.received_s)
    tenants = [
        QueuedTenant(
            own.tenant,
            priority,
            len(own.requests),
            max(0.0, now - own.places[0][0]),
            own.cost_s,
            own.counter.weight,
            own.counter.weight / weights[priority],
            own.counter.received_s - least_s[priority],
        )
        for priority, own in every[:MAX_TENANTS]
    ]
    return QueueExplanation(len(queue), why.value, tuple(tenants))
