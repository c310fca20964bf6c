"""What follows an attempt that failed before the client received a byte: another target, or a refusal.

The table of outcomes (penstock/accounts/outcome_rules.py) states which outcomes of an attempt permit another one, and
which are the fault of the endpoint.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from penstock.accounts.outcome_rules import RULES, Outcome, outcome_of_error, outcome_of_refusal
from penstock.admission.retry_after import MIN_RETRY_S
from penstock.answers.answer_errors import ABORTED, AnswerError, ErrorCause
from penstock.answers.missing_model import STATUSES as MISSING_STATUSES
from penstock.answers.missing_model import lacks_model
from penstock.answers.stream_usage_flag import REFUSING_STATUSES
from penstock.health.health_check import is_busy_text, is_rejection
from penstock.health.progress import Stall
from penstock.retries.retry_rules import (
    MAX_ATTEMPTS,
    MAX_BROKEN,
    OUTCOMES,
    RETRIED_STATUSES,
    UNAUTHORIZED,
    RetryReason,
)
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Reason, Refusal
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.stream_usage import StreamUsage
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.upstream.response_head import ResponseHead

UNAVAILABLE: Final = "status 503"
"""The error of an engine that cannot serve now, which is no fault of the request."""

MAX_SHOWN: Final = 200
"""Size (bytes) of the beginning of an engine's error that a client receives in the message of a refusal."""

_REJECTIONS: Final[dict[Reason, Outcome]] = {Reason.ENGINE_TIMEOUT: Outcome.STALLED}
"""The outcomes of rejections by peers, by their reason, that are no refusals: the peer's engine may have started."""

_OWN_IDS: Final = (b'"rid"', b'"request_id"')
"""Members in which a client names its request for SGLang and vLLM, and may abort it if policy has a route for that."""

_READS: Final = frozenset({b"GET", b"HEAD"})
_USAGE_REFUSED: Final = RetryReason.USAGE_REFUSED
_CLOSED_EARLY: Final = RetryReason.CLOSED_EARLY
_SATURATED: Final = Reason.SATURATED
_ENGINE_FAILED: Final = Reason.ENGINE_FAILED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


class Withheld(Enum):
    """Why the response of a target that stated no `Reason` is read, and not forwarded."""

    USAGE_REFUSED = auto()
    """The engine refused the flag that the agent set, or reports the usage in a stream whose events are encoded."""
    MODEL_MISSING = auto()
    """The engine responded with 404, and another endpoint of the region is ready."""
    UNAUTHORIZED = auto()
    """The engine responded with 401 or 403 although no credential is configured, and another endpoint is ready."""
    MODEL_MAY_BE_MISSING = auto()
    """The engine responded with 400, or the last one of the region with 404; the body shows whether it lacks the
    model."""
    ENGINE_ERROR = auto()
    """The engine failed, and another target may not."""
    REDIRECTED = auto()
    """The engine responded with a redirect in place of an answer."""
    UNEXPLAINED_503 = auto()
    """The engine responded with 503 although it should have a free slot; the body shows whether it failed."""


NEEDS_BODY: Final = (
    Withheld.UNEXPLAINED_503,
    Withheld.ENGINE_ERROR,
    Withheld.MODEL_MISSING,
    Withheld.MODEL_MAY_BE_MISSING,
    Withheld.USAGE_REFUSED,
)
"""Why the body of a response is kept: it decides what follows, or the client receives it at the end."""


def rejection_of(
    proxy: Proxy, context: RequestContext, attempt: Attempt, usage: StreamUsage | None, head: ResponseHead
) -> Reason | Withheld | None:
    """Why a response is not for the client: its target did not start the request, or failed; None if it may be."""
    status = head.status
    reason = attempt.on_head(status, head.by_name, head.headers)
    if usage is not None and usage.flag is not None and not context.continuations:
        # The event with the usage cannot be removed from an encoded stream.
        shows_usage = usage.is_hidden and head.is_encoded_stream and may_send_again(context)
        if (status in REFUSING_STATUSES and not (attempt.from_peer and attempt.is_charged)) or shows_usage:
            return reason or Withheld.USAGE_REFUSED
    if status == 503 and attempt.is_charged:
        return Withheld.UNEXPLAINED_503
    if 300 <= status < 400 and isinstance(attempt, LocalAttempt) and _is_no_answer(context, status):
        attempt.failed(Outcome.ENGINE_ERROR)
        context.engine_reported(f"status {status}")
        return Withheld.REDIRECTED
    if reason is not None or status < 400:
        return reason
    if status in MISSING_STATUSES and isinstance(attempt, LocalAttempt):
        missing = _may_lack_model(proxy, context, attempt, status)
        if missing is not None:
            return missing
    if status in UNAUTHORIZED and isinstance(attempt, LocalAttempt) and _has_another_here(proxy, context, attempt):
        return Withheld.UNAUTHORIZED
    if (attempt.from_peer or status in RETRIED_STATUSES) and _may_move(proxy, context, attempt):
        context.engine_reported(f"status {status}")
        return Withheld.ENGINE_ERROR
    return None


def after_rejection(
    proxy: Proxy, context: RequestContext, attempt: Attempt, reason: Reason, now: float
) -> RetryReason | Refusal:
    """What follows a rejection: another target, unless a peer reports that its engine may have started. `now` in s.

    A request whose only target, by its Retry-After, accepts it when it can wait no longer is refused at once.
    """
    if not RULES[_REJECTIONS.get(reason, Outcome.REFUSED)].may_retry:
        return Refusal(reason, f"the engine in {attempt.region} did not begin in time")
    attempt.rejected(context, reason, now)
    if reason is _ENGINE_FAILED and attempt.from_peer and attempt.failed_engines and not context.is_repeatable:
        return Refusal(reason, f"the engine in {attempt.region} failed, and may have begun")
    accepts_in_s = attempt.accepts_in_s
    if accepts_in_s > context.received_at + context.max_wait_s - now:
        context.busy_endpoints -= {attempt.endpoint_name}
        if not (_has_another(proxy, context, attempt, now) or _may_wait_for_another(proxy, context, attempt)):
            who = attempt.region if attempt.from_peer else "the engine"
            return Refusal(_SATURATED, f"{who} accepts the request in {accepts_in_s:g} s", retry_after_s=accepts_in_s)
    return attempt.retry_reason


def after_withheld(
    proxy: Proxy, context: RequestContext, attempt: Attempt, why: Withheld, body: bytes, now: float
) -> RetryReason | Refusal:
    """What follows a response that was withheld, and whose body does not decide that. `now` in s."""
    if why is Withheld.MODEL_MISSING:
        route = context.request.route
        if isinstance(attempt, LocalAttempt) and route is not None and not _lacks_model(context, attempt, 404, body):
            attempt.lacks_route = route.name
        attempt.rejected(context, Reason.MODEL_NOT_READY, now)
        return RetryReason.MODEL_MISSING
    if why is Withheld.UNAUTHORIZED:
        attempt.rejected(context, _ENGINE_FAILED, now)
        return RetryReason.CREDENTIAL_REJECTED
    if why is Withheld.REDIRECTED and not _may_move(proxy, context, attempt):
        return refusal_of_error(context)
    attempt.failed_first(context)
    return RetryReason.ENGINE_ERROR


def refusal_without_retry(context: RequestContext, attempt: Attempt, why: Reason | Withheld) -> Refusal | None:
    """What a client receives in place of a response that is not for it, where the request cannot be sent again.

    None for responses that the client receives nevertheless: errors whose cause may be the request, and those of other
    regions that are no refusals.
    """
    if attempt.from_peer:
        return _refusal_of_region(context, attempt, why) if isinstance(why, Reason) else None
    if why is _SATURATED:
        return Refusal(_SATURATED, "the engine is full", retry_after_s=max(attempt.accepts_in_s, MIN_RETRY_S))
    if why is _ENGINE_FAILED:
        context.engine_reported("it rejects the credential of its endpoint")
    elif why is Withheld.UNEXPLAINED_503:
        context.engine_reported(UNAVAILABLE)
    elif why is not Withheld.REDIRECTED:
        return None
    return refusal_of_error(context)


def _refusal_of_region(context: RequestContext, attempt: Attempt, why: Reason) -> Refusal | None:
    """What a client receives if another region refused its request, and none else receives it; None if the request
    itself is the cause."""
    outcome, detail = outcome_of_refusal(why), f"{attempt.region} has refused the request: {why.value}"
    if outcome is Outcome.CLIENT_ERROR:
        return None
    if why in (_SATURATED, Reason.NO_IDLE_SLOTS):
        return Refusal(_SATURATED, detail, retry_after_s=max(attempt.accepts_in_s, MIN_RETRY_S))
    if why is _ENGINE_FAILED or outcome is Outcome.STALLED:
        return Refusal(why, detail)
    return Refusal(Reason.NONE_READY, detail, retry_after_s=MIN_RETRY_S)


def refusal_of_answer(context: RequestContext, attempt: Attempt, error: AnswerError) -> Refusal | None:
    """What a client receives in place of a response with status 200 that is an error; as `refusal_without_retry`."""
    if not RULES[outcome_of_error(error)].may_retry or _may_be_own(context, error):
        return None
    attempt.erred(error)
    if error.cause is ErrorCause.BUSY:
        return refusal_without_retry(context, attempt, _SATURATED)
    context.engine_reported(error.message)
    return refusal_of_error(context)


def after_unexplained(
    proxy: Proxy, context: RequestContext, attempt: Attempt, body: bytes, now: float, *, is_whole: bool
) -> RetryReason | Refusal | None:
    """What follows a 503 of an engine with free slots; None if the receiver of the response gets it. `now` in s.

    A client receives a refusal instead, as of a request for which no endpoint is ready: it states when to try again.

    Args:
        body: the body, or its beginning.
        is_whole: whether `body` is the whole body.
    """
    if isinstance(attempt, LocalAttempt) and is_rejection(body):
        if is_busy_text(body):
            attempt.erred(AnswerError(ErrorCause.BUSY, ""))
        attempt.rejected(context, _SATURATED, now)
        return RetryReason.ENGINE_BUSY
    if _may_move(proxy, context, attempt):
        context.engine_reported(UNAVAILABLE)
        attempt.failed_first(context)
        return RetryReason.ENGINE_ERROR
    if context.route_context is None and context.is_repeatable:
        context.engine_reported(UNAVAILABLE)
        context.broken += 1
        return refusal_of_error(context, shown_of(body))
    return None if is_whole else Refusal(_ENGINE_FAILED, f"the engine reported an error: {UNAVAILABLE}")


def after_missing_model(
    proxy: Proxy, context: RequestContext, attempt: Attempt, status: int, body: bytes, now: float
) -> RetryReason | None:
    """What follows a response that may state a missing model; None if it does not, or if nothing else is left.

    Otherwise another endpoint, a burst endpoint or another region serves the request. `now` in s.
    """
    if not isinstance(attempt, LocalAttempt) or status not in MISSING_STATUSES:
        return None
    if not _lacks_model(context, attempt, status, body):
        return None
    attempt.endpoint.check_models_soon()
    if context.route_context is None or _has_another(proxy, context, attempt, now):
        context.engine_reported(f"status {status}")
        attempt.rejected(context, Reason.MODEL_NOT_READY, now)
        return RetryReason.MODEL_MISSING
    context.lacks_model = True
    return None


def refusal_of_error(context: RequestContext, shown: str = "") -> Refusal:
    """Return the refusal of a request that no target can serve after an engine responded with an error.

    Args:
        shown: what the engine stated, for the client.
    """
    detail = f"the engine reported an error: {context.reported_error}{shown}"
    if context.route_context is None and context.reported_error == UNAVAILABLE:
        return Refusal(Reason.NONE_READY, detail, retry_after_s=MIN_RETRY_S)
    return Refusal(_ENGINE_FAILED, detail)


def shown_of(body: bytes) -> str:
    """Return the beginning of the body of an error as a part of a message."""
    text = " ".join(body[:MAX_SHOWN].decode("utf-8", "replace").split())
    return f": {text}" if text else ""


def after_error(
    proxy: Proxy, context: RequestContext, attempt: Attempt, error: AnswerError, now: float
) -> RetryReason | Refusal | None:
    """What follows a response with status 200 that begins with an error; None if the client receives it. `now` in s.

    An engine that states that it is full has rejected the request, as by its status.
    """
    outcome = outcome_of_error(error)
    if not RULES[outcome].may_retry or not isinstance(attempt, LocalAttempt):
        return None
    if _may_be_own(context, error):
        return None
    attempt.erred(error)
    if error.cause is ErrorCause.BUSY:
        return after_rejection(proxy, context, attempt, _SATURATED, now)
    if not _may_retry(proxy, context, attempt, outcome):
        return None
    context.engine_reported(error.message)
    attempt.failed_first(context)
    return RetryReason.ENGINE_ERROR


def _may_be_own(context: RequestContext, error: AnswerError) -> bool:
    """Whether the client itself may have let the engine abort its answer."""
    return error is ABORTED and any(name in context.request.body for name in _OWN_IDS)


def while_awaiting(
    proxy: Proxy, context: RequestContext, attempt: Attempt, overdue: str, now: float
) -> RetryReason | Refusal | None:
    """What follows if no response has begun by `now` (s): another target if this one failed or is suspect.

    Args:
        overdue: why the target is overdue, which ends the request, since it may have started; empty to wait.
    """
    if context.request.whole:
        expected_tokens = attempt.waits(now)
        if context.reservation is not None:
            context.reservation.answer_grew(expected_tokens, has_arrived=False)
    if attempt.peer_failed():
        attempt.unreachable(context, broke=True)
        return RetryReason.CLOSED_EARLY
    stall = attempt.stall()
    if stall is not None and _may_leave_suspect(proxy, context, attempt, stall, now):
        attempt.moved_away(context)
        return RetryReason.ENDPOINT_SUSPECT
    if not overdue:
        return None
    attempt.failed(Outcome.STALLED)
    return Refusal(Reason.ENGINE_TIMEOUT, f"the engine {overdue}")


def refuse_retry(proxy: Proxy, context: RequestContext, why: RetryReason, now: float) -> Refusal | None:
    """Take a retry from the budget; a refusal if the request cannot be sent again, or the budget is used up.

    A request that an engine refused because of the agent's flag takes nothing from the budget: the agent caused that.
    """
    rules, budget = RULES[OUTCOMES[why]], proxy.retry_budget
    if why is _USAGE_REFUSED and not context.request.body_dropped:
        return None
    if not rules.may_retry:
        return Refusal(_ENGINE_FAILED, why.value)
    if context.request.body_dropped:
        return Refusal(_ENGINE_FAILED, f"{why.value}, and the body was not kept for a retry")
    route = context.request.route
    if why is _CLOSED_EARLY and route is not None and not route.repeatable:
        return Refusal(_ENGINE_FAILED, f"{why.value}, and the engine may have begun")
    if budget.withdraw(now):
        return None
    reason = _ENGINE_FAILED if rules.charges_endpoint else _SATURATED
    return Refusal(reason, f"{why.value}, and the retry budget is used up", retry_after_s=budget.more_in_s(now))


def asks_origin(context: RequestContext, attempt: Attempt, status: int) -> bool:
    """Whether the response to a peer's request states that the origin may send the request to another region.

    Engines of this region failed it, or lack its model. Whether the request may be sent again, the origin knows.
    """
    if status in MISSING_STATUSES:
        return context.lacks_model
    is_failure = context.route_context is not None and (status == 503 or status in RETRIED_STATUSES)
    return is_failure and attempt.is_at_fault()


def _has_another(
    proxy: Proxy, context: RequestContext, attempt: Attempt, now: float, *, leaves_region: bool = False
) -> bool:
    """Whether a target is ready besides that of `attempt` and those that failed; of a peer's request, here.

    Args:
        leaves_region: whether no further endpoint of the region of `attempt` may receive the request.
    """
    router, tried = proxy.router, context.tried_endpoints - context.busy_endpoints | {attempt.endpoint_name}
    if context.route_context is not None:
        return not leaves_region and router.burst.has_another_here(context, tried, now)
    failed_region = attempt.region if attempt.from_peer or leaves_region else ""
    return router.has_other_target(context, tried, now, failed_region=failed_region)


def _may_wait_for_another(proxy: Proxy, context: RequestContext, attempt: Attempt) -> bool:
    """Whether a request for which no target is ready waits for one besides that of `attempt`: for an endpoint that
    starts, for a region that is full, or, as batch work, for any region."""
    known = (attempt.region, proxy.router.region)
    is_full = any(why is _SATURATED for region, why in context.tried_regions.items() if region not in known)
    return is_full or (attempt.from_peer and context.is_batch) or proxy.router.awaits_endpoint(context)


def _may_lack_model(proxy: Proxy, context: RequestContext, attempt: LocalAttempt, status: int) -> Withheld | None:
    """Why a 404 or 400 may not be for the client: another endpoint of the region is ready, or one elsewhere; None if it
    is. A 400 mostly is the client's mistake, so that its body decides."""
    if _has_another_here(proxy, context, attempt):
        return Withheld.MODEL_MISSING if status == 404 else Withheld.MODEL_MAY_BE_MISSING
    if context.request.body_dropped or context.needs_object:
        return None
    now = proxy.clock()
    may_leave = context.route_context is not None or _has_another(proxy, context, attempt, now)
    return Withheld.MODEL_MAY_BE_MISSING if may_leave and proxy.retry_budget.allows_one(now) else None


def _lacks_model(context: RequestContext, attempt: LocalAttempt, status: int, body: bytes) -> bool:
    """Whether a response states that the engine lacks the model."""
    route, model = context.request.route, context.estimate.adapter or context.model
    name = model if attempt.rewrite is None else attempt.rewrite.engine_name(model)
    return lacks_model(body, ErrorFormat.OPENAI if route is None else route.errors, status, name)


def _has_another_here(proxy: Proxy, context: RequestContext, attempt: LocalAttempt) -> bool:
    """Whether the request can and may be sent to another endpoint of the region, which is ready."""
    tried = context.tried_endpoints | {attempt.endpoint_name}
    can_send = not (context.request.body_dropped or context.needs_object)
    return can_send and proxy.router.local.has_another(context, tried) and proxy.retry_budget.allows_one(proxy.clock())


def _is_no_answer(context: RequestContext, status: int) -> bool:
    """Whether a redirection is an error: no API of a preset has one. A route of the policy may redirect to a store of
    objects, and 304 responds to a condition of a client that reads."""
    route, request = context.request.route, context.request
    return route is not None and not route.source and (status != 304 or request.method not in _READS)


def _may_move(proxy: Proxy, context: RequestContext, attempt: Attempt) -> bool:
    """Whether a request, to which an engine responded with an error, is sent to another target.

    The request of a peer stays if this region has no other endpoint: only its origin knows whether another region is
    left, and forwards the engine's response otherwise (`asks_origin`).
    """
    return (
        attempt.is_at_fault()
        and not context.needs_object
        and _has_another(
            proxy, context, attempt, proxy.clock(), leaves_region=context.broken + attempt.failed_engines >= MAX_BROKEN
        )
        and _may_retry(proxy, context, attempt, Outcome.ENGINE_ERROR)
    )


def _may_leave_suspect(proxy: Proxy, context: RequestContext, attempt: Attempt, stall: Stall, now: float) -> bool:
    """Whether a request may leave its suspect target. Otherwise it stays, since the target may recover."""
    return (
        stall.may_resend(repeatable=context.is_repeatable)
        and not context.request.body_dropped
        and context.attempts < MAX_ATTEMPTS
        and context.broken + context.failed_elsewhere + 1 < MAX_BROKEN
        and proxy.retry_budget.allows_one(now)
        and proxy.router.has_other_target(context, context.tried_endpoints | {attempt.endpoint_name}, now)
    )


def _may_retry(proxy: Proxy, context: RequestContext, attempt: Attempt, outcome: Outcome) -> bool:
    """Whether the client's request can and may be sent again after an attempt ended with `outcome`."""
    has_attempts = context.attempts < MAX_ATTEMPTS and context.failures_left > attempt.failed_engines
    may_retry = RULES[outcome].may_retry and has_attempts and may_send_again(context)
    return may_retry and proxy.retry_budget.allows_one(proxy.clock())


def may_send_again(context: RequestContext) -> bool:
    """Whether the client's request can be sent again after an engine may have started it."""
    request = context.request
    return request.whole and not request.body_dropped and context.is_repeatable and not context.is_for_object
