"""The end of an authorized request: its refusal, and the release of what it holds with the record of its account."""

from __future__ import annotations

from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome, outcome_of_refusal, outcome_of_status
from penstock.routing.reasons import Reason, Refusal
from regional_agent.proxy.error_responses import error_format_of, refusal_response
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.rate_limit_headers import rate_limit_lines
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.routing.forwarded_attempt import engines_failed_line
from regional_agent.routing.queue_entry import QueueEntry
from regional_agent.tenants.settlement import settle

_OK: Final = Outcome.OK
_ENGINE_FAILED: Final = Reason.ENGINE_FAILED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


Response = tuple[int, list[bytes], bytes]
"""Status, header lines and body."""


def refusal_of_context(proxy: Proxy, context: RequestContext, refusal: Refusal) -> Response:
    """Return the refusal of an authorized request, in the error format of its API."""
    error_format = error_format_of(context.request)
    rng = proxy.rng if context.route_context is None else None
    status, lines, body = refusal_response(refusal, rng, error_format, context.request_id)
    if context.reservation is not None:
        lines.append(rate_limit_lines(context.reservation.budgets, error_format))
    is_origin = context.route_context is None
    failed = context.broken + is_origin * context.failed_elsewhere if context.attempts else 0
    if (failed or refusal.reason is _ENGINE_FAILED) and not (is_origin and context.job_deadline_at is None):
        # Of a job, the next run is one of those that failed; of a peer's request, the origin counts the engines.
        lines.append(engines_failed_line(context.failed_here(), broke=context.may_end_engines))
    return status, lines, body


def response_of_refusal(
    proxy: Proxy, context: RequestContext, refusal: Refusal, engine_error: Response | None
) -> tuple[Response, Outcome]:
    """Return the response to a refused request, and its outcome.

    Args:
        engine_error: the error of an engine, which the client receives where no other target could serve the request.
    """
    if engine_error is not None and refusal.reason is _ENGINE_FAILED and context.route_context is None:
        return engine_error, outcome_of_status(engine_error[0])
    return refusal_of_context(proxy, context, refusal), outcome_of_end(context, refusal)


def outcome_of_end(context: RequestContext, refusal: Refusal) -> Outcome:
    """The outcome of a request that is refused before its response has begun."""
    own_deadline, is_batch = context.own_deadline, context.is_batch
    return outcome_of_refusal(refusal.reason, failed_as=context.failed_as, own_deadline=own_deadline, is_batch=is_batch)


def end_request(
    proxy: Proxy,
    context: RequestContext,
    attempt: Attempt | None,
    queue_entry: QueueEntry | None,
    account: Account,
    service_s: float | None,
) -> None:
    """Release everything that a request holds, and record its account. Called exactly once per request.

    All resources are released before the outcome is recorded, so that a failed recording cannot leak a slot.

    Args:
        attempt: the last attempt; None if no target has the request.
        queue_entry: the place in the admission queue, if the request waits there.
        service_s: service time (s) of a complete response of `attempt`; None for any other outcome.
    """
    now = account.ended_at
    try:
        if queue_entry is not None:
            context.queued_s += now - queue_entry.since
            proxy.router.queue.leave(queue_entry)
    finally:
        try:
            if attempt is not None:
                attempt.settle(now, service_s, account.measured_usage if account.outcome is _OK else None)
        finally:
            if context.reservation is not None:
                settle(proxy.router.requests.authorization.budgets, context, attempt, account)
    if context.held_records is not None:
        paid = account.usage if account.charges_tenant else None
        context.held_records.used(context.request_id, context.asked_for, paid)
    proxy.recorder.record(context, attempt, account)
