"""The endpoints to which Envoy may send a request in turn, and what the first one is charged if Envoy repeats it.

The rules are those of the agent's own retries (`regional_agent/proxy/retries.py`), but Envoy applies them before the
picker receives a response: the picker states the next endpoint, the statuses and the number of retries beforehand.
"""

from __future__ import annotations

from typing import Final

from penstock.accounts.retry_rules import MAX_BROKEN, RETRIED_STATUSES, RetryReason
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.picker.early_ends import STREAM_HEADER, FailedAttempt
from regional_agent.picker.envoy_responses import retry_on, set_header
from regional_agent.picker.grpc_requests import http_status
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import BUSY_STATUSES, Attempt, LocalAttempt

MAX_ALTERNATIVES: Final = 2
"""Maximum number of endpoints for Envoy's retries, after the chosen one."""

MAX_CONSIDERED: Final = 8
"""Number of endpoints of which the alternatives are chosen: those on other hosts first, as a host fails with all of
its endpoints."""

_RETRY_ON: Final = retry_on(b"reset,retriable-status-codes", RETRIED_STATUSES | BUSY_STATUSES)
"""Lets Envoy repeat a request if its endpoint disconnects before the response, fails, or is full."""

_RETRY_ON_BUSY: Final = retry_on(b"retriable-status-codes", BUSY_STATUSES - {503})
"""The same of a request that must not run twice, and that its endpoint has not started; a 503 may be an error."""

_RETRY_GRPC_ON: Final = set_header(b"x-envoy-retry-grpc-on", b"internal,resource-exhausted,unavailable")
_RETRY_GRPC_ON_BUSY: Final = set_header(b"x-envoy-retry-grpc-on", b"resource-exhausted")
"""The same for statuses of gRPC in place of a response."""


def destinations_of(proxy: Proxy, context: RequestContext, attempt: Attempt) -> dict[str, Endpoint | None]:
    """Return the endpoints for Envoy, in order, by `ip:port`; empty if the address of the target is unknown.

    The agent of another region is None.
    """
    pools, local = proxy.pools, proxy.router.local
    pool = pools.peers if attempt.from_peer else pools.endpoints
    if not isinstance(attempt, LocalAttempt):
        first = pool.ip_and_port(attempt.address)
        return {first: None} if first else {}
    found: dict[str, Endpoint | None] = {}
    subset = context.subset
    others = local.alternatives(context, attempt, MAX_CONSIDERED)
    if len(others) > 1:
        host = attempt.address.host
        others.sort(key=lambda each: each.address.host == host)
    for endpoint in (attempt.endpoint, *others[:MAX_ALTERNATIVES]):
        address = endpoint.address if subset is None else subset.address_of(endpoint)
        destination = "" if address is None else pool.ip_and_port(address)
        if not destination and endpoint is attempt.endpoint:
            return {}
        if destination:
            found.setdefault(destination, endpoint)
    return found


def retry_headers(context: RequestContext, endpoints: int, stream: bytes, *, over_grpc: bool) -> bytes:
    """Return the fields of a `HeaderMutation` that limit Envoy's retries to the endpoints of the list.

    Args:
        endpoints: number of endpoints in the list. Beyond them, Envoy might choose one itself. A retry after the only
            one replaces a connection that has ended meanwhile.
        stream: the identifier of the request, which lets Envoy repeat it after a response; empty if it may not.
    """
    changes, count = b"", max(endpoints - 1, 1)
    if stream:
        repeatable = context.is_repeatable and not context.is_for_object
        changes = set_header(STREAM_HEADER, stream) + (_RETRY_ON if repeatable else _RETRY_ON_BUSY)
        if over_grpc:
            changes += _RETRY_GRPC_ON if repeatable else _RETRY_GRPC_ON_BUSY
        # The request may be the cause: not more often than the agent does.
        count = MAX_BROKEN - 1 if repeatable else count
    return changes + set_header(b"x-envoy-max-retries", b"%d" % count)


def record_failure(
    context: RequestContext, attempt: LocalAttempt, failed: FailedAttempt | None, now: float
) -> RetryReason:
    """Charge the first endpoint after Envoy sent the request to the next one; returns why. `now` in s.

    Args:
        failed: the response of the first endpoint; None if it did not respond, or Envoy's access log does not state it.
    """
    if failed is None:
        attempt.unreachable(context, broke=True)
        return RetryReason.CLOSED_EARLY
    status = http_status(failed.headers) or failed.status
    reason = attempt.on_head(status, dict(failed.headers), failed.headers)
    if reason is None or attempt.is_charged:
        attempt.failed_first(context)
        return RetryReason.ENGINE_ERROR
    attempt.rejected(context, reason, now)
    return attempt.retry_reason
