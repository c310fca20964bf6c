"""A waiting request as its queue sees it: its place, its times, and the requests that may use the same targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.admission.tenant_order import QueuedRequest, urgency_at
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.pools.context_lengths import NO_ENDPOINTS
from penstock.routing.endpoint_chooser import is_long
from penstock.routing.reasons import Refusal

if TYPE_CHECKING:
    from regional_agent.requests.request_context import RequestContext
    from regional_agent.routing.attempt import Attempt

OnTarget = Callable[["Attempt | Refusal"], None]
Select = Callable[["RequestContext", float], "Attempt | Refusal | None"]


class Waiter:
    """A waiting request, with the functions that select its target and that receive it."""

    def __init__(
        self, context: RequestContext, select: Select, on_target: OnTarget, unable: frozenset[str] = NO_ENDPOINTS
    ) -> None:
        """Create the waiter of one request.

        Args:
            select: returns the target or the refusal of the request, or None while it has to wait; called repeatedly.
            on_target: called with the target or the refusal, at most once.
            unable: names of the endpoints that cannot serve the request.
        """
        self.context = context
        self.select = select
        self.on_target = on_target
        self.unable = unable


QueueEntry = QueuedRequest[Waiter]


def entry_of(waiter: Waiter, size_bytes: int, max_wait_s: float) -> QueueEntry:
    """The request as the queue sees it. Its times count from the arrival, so that one that joins again keeps them."""
    context = waiter.context
    arrived_at, estimate = context.received_at, context.estimate
    give_up_at = min(context.deadline_at, arrived_at + max_wait_s)
    model, work_s = context.policy.models.get(context.model), estimate.work.prefill_s + estimate.work.decode_s
    urgency = give_up_at
    if context.job_deadline_at is not None:
        urgency = context.job_deadline_at
    elif model is not None:
        urgency = urgency_at(model.queueing, arrived_at, give_up_at, work_s, model.expected_service_s)
    return QueuedRequest(
        waiter,
        tenant=estimate.tenant,
        priority=context.priority,
        size_bytes=size_bytes,
        arrived_at=arrived_at,
        urgency_at=urgency,
        leave_at=give_up_at,
        cost_s=work_s,
        weight=context.weight,
        rests_until=context.rests_until,
        represents_group=not context.attempts,
    )


def group_of(waiter: Waiter) -> str:
    """The group of a request: requests of one residency class may use the same endpoints and regions.

    Long prompts are groups of their own, since an endpoint with room may take a short prompt and no long one. So are
    the requests that only the endpoint with their object can serve, and batch requests, which have other credits.
    """
    context = waiter.context
    name = context.residency.permitted.name
    location = context.object_location
    if location is not None and context.needs_object:
        return f"{name}, at {location.endpoint}"
    if context.context_class:
        name = f"{name}, from {context.context_class} tokens"
    if context.priority == BATCH_PRIORITY:
        name = f"{name}, batch"
    return f"{name}, long prompts" if is_long(context.estimate) else name
