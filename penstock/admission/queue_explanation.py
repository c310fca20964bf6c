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
    tenants = [
        QueuedTenant(
            own.tenant,
            priority,
            len(own.requests),
            max(0.0, now - own.places[0][0]),
            own.cost_s,
        )
        for priority, own in queue.tenants_in_order()[:MAX_TENANTS]
    ]
    return QueueExplanation(len(queue), why.value, tuple(tenants))
