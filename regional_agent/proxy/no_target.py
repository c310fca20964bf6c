"""What follows if the router selects no target for a request: a place in the admission queue, or the fallback model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.retries.next_step import refusal_of_error
from penstock.routing.reasons import Reason, Refusal
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.routing.queue_entry import QueueEntry

_SATURATED: Final = Reason.SATURATED
_NONE_READY: Final = Reason.NONE_READY
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


def wait_or_fall_back(
    proxy: Proxy, context: RequestContext, refusal: Refusal, on_turn: Callable[[Attempt | Refusal], None]
) -> Attempt | QueueEntry | Refusal:
    """What follows a refusal by the router: an entry in the admission queue, a target for the fallback model, or the
    refusal for the client.

    Args:
        on_turn: receives the target or the refusal of a queued request.
    """
    router, request = proxy.router, context.request
    while True:
        if not (refusal.reason is _NONE_READY and router.requests.fall_back(context, request, refusal)):
            if refusal.reason is _SATURATED or (refusal.reason is _NONE_READY and router.awaits_endpoint(context)):
                entry = _queue(proxy, context, on_turn, refusal)
                if not isinstance(entry, Refusal):
                    return entry
                refusal = entry
            if not router.requests.fall_back(context, request, refusal):
                if refusal.reason is _NONE_READY and context.reported_error:
                    is_forwarded = context.route_context is not None
                    return refusal_of_error(context.reported_error, is_forwarded=is_forwarded)
                return refusal
        target = router.next_target(context, proxy.clock())
        if not isinstance(target, Refusal):
            return target
        refusal = target


def reads_while_queued(proxy: Proxy, context: RequestContext) -> bool:
    """Whether the rest of a body is read while its request is queued, which also detects a disconnect of the client.

    True for a body that fits into the memory for one request.
    """
    length = context.request.length
    return length is not None and length <= proxy.limits.kept_body_bytes


def _queue(
    proxy: Proxy, context: RequestContext, on_turn: Callable[[Attempt | Refusal], None], refusal: Refusal
) -> QueueEntry | Refusal:
    """Add a request to the admission queue, since all targets are full; returns a refusal if waiting is useless."""
    size_bytes = len(context.request.body)
    if reads_while_queued(proxy, context):
        size_bytes = max(size_bytes, context.request.length or 0)
    entry = proxy.router.wait(context, size_bytes, on_turn, proxy.clock())
    if isinstance(entry, Refusal):
        return Refusal(refusal.reason, f"{refusal.detail}; {entry.detail}", refusal.rejected, entry.retry_after_s)
    return entry
