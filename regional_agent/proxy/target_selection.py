"""Selects the next target of a request: the router's choice, a place in the admission queue, or the fallback model."""

from __future__ import annotations

from collections.abc import Callable

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request
from regional_agent.proxy.exchange_services import ExchangeServices
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.admission_queue import QueueEntry
from regional_agent.routing.attempt import Attempt

_SATURATED, _NONE_READY = Reason.SATURATED, Reason.NONE_READY
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


def select_target(
    services: ExchangeServices,
    context: RequestContext,
    request: Request,
    on_turn: Callable[[Attempt | Refusal], None],
    now: float,
) -> Attempt | QueueEntry | Refusal:
    """The next target of a request, its entry in the admission queue, or the refusal for its client.

    Args:
        on_turn: receives the target or the refusal of a queued request.
        now: by the agent's clock (s).
    """
    while True:
        target: Attempt | QueueEntry | Refusal = services.router.next_target(context, now)
        if not isinstance(target, Refusal):
            return target
        if target.reason is _NONE_READY and services.router.requests.fall_back(context, request, target):
            now = services.clock()
            continue
        if target.reason is _SATURATED or (target.reason is _NONE_READY and services.router.awaits_endpoint(context)):
            target = _queue(services, context, request, on_turn, target)
            if not isinstance(target, Refusal):
                return target
        if not services.router.requests.fall_back(context, request, target):
            return target
        now = services.clock()


def reads_while_queued(request: Request, limits: Limits) -> bool:
    """Whether the rest of a body is read while its request is queued, which also detects a disconnect of the client.

    True for a body that fits into the memory for one request.
    """
    return request.length is not None and request.length <= limits.kept_body_bytes


def _queue(
    services: ExchangeServices,
    context: RequestContext,
    request: Request,
    on_turn: Callable[[Attempt | Refusal], None],
    refusal: Refusal,
) -> QueueEntry | Refusal:
    """Add a request to the admission queue, since all targets are full; returns a refusal if waiting is useless."""
    size_bytes = len(request.body)
    if reads_while_queued(request, services.limits):
        size_bytes = max(size_bytes, request.length or 0)
    entry = services.router.wait(context, size_bytes, on_turn, services.clock())
    if isinstance(entry, Refusal):
        return Refusal(refusal.reason, f"{refusal.detail}; {entry.detail}", refusal.rejected, entry.retry_after_s)
    return entry
