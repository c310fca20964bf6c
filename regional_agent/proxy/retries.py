"""Asks what decides about a failed attempt, and records the decision: the rules are in `penstock/retries`."""

from __future__ import annotations

from typing import Final

from penstock.accounts.outcome_rules import Outcome
from penstock.answers.answer_errors import AnswerError, ErrorCause
from penstock.answers.missing_model import STATUSES as MISSING_STATUSES
from penstock.answers.missing_model import lacks_model
from penstock.continuation.stream_usage import StreamUsage
from penstock.health.progress import Stall
from penstock.http.response_head import ResponseHead
from penstock.retries import next_step
from penstock.retries.failed_attempt import FailedAttempt, may_run_again
from penstock.retries.next_step import STATES_FAILURE, AttemptEnd, Step
from penstock.retries.retry_rules import RETRY_RULES, RetryReason
from penstock.retries.withheld import MAY_LACK_MODEL, ResponseFacts, Withheld, WithheldAnswer, withheld_because
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Reason, Refusal
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt

_BUSY: Final = AnswerError(ErrorCause.BUSY, "")


class FailedTarget:
    """The target of a failed attempt, and the other targets of its request: `OtherTargets`."""

    def __init__(self, proxy: Proxy, context: RequestContext, attempt: Attempt, now: float) -> None:
        """`now` in s."""
        self._proxy = proxy
        self._context = context
        self._attempt = attempt
        self._now = now

    def facts(self) -> FailedAttempt:
        """Return what is known of the attempt."""
        context, attempt = self._context, self._attempt
        return FailedAttempt(
            is_whole=context.request.whole,
            is_kept=not context.request.body_dropped,
            is_repeatable=context.is_repeatable,
            needs_object=context.needs_object,
            is_for_object=context.is_for_object,
            is_forwarded=context.route_context is not None,
            attempts=context.attempts,
            broken=context.broken,
            failed_elsewhere=context.failed_elsewhere,
            failures_left=context.failures_left,
            reported_error=context.reported_error,
            from_peer=attempt.from_peer,
            region=attempt.region,
            failed_engines=attempt.failed_engines,
            is_charged=attempt.is_charged,
            accepts_in_s=attempt.accepts_in_s,
            rejected_as=attempt.retry_reason,
        )

    def is_ready_here(self) -> bool:
        """As `OtherTargets`."""
        context = self._context
        return self._proxy.router.local.has_another(context, context.tried_endpoints | {self._attempt.endpoint_name})

    def is_ready(self, *, leaves_region: bool) -> bool:
        """As `OtherTargets`."""
        context, attempt, router = self._context, self._attempt, self._proxy.router
        tried = context.tried_endpoints - context.busy_endpoints | {attempt.endpoint_name}
        if context.route_context is not None:
            return not leaves_region and router.burst.has_another_here(context, tried, self._now)
        failed_region = attempt.region if attempt.from_peer or leaves_region else ""
        return router.has_other_target(context, tried, self._now, failed_region=failed_region)

    def is_ready_beside_suspect(self) -> bool:
        """As `OtherTargets`."""
        context = self._context
        tried = context.tried_endpoints | {self._attempt.endpoint_name}
        return self._proxy.router.has_other_target(context, tried, self._now)

    def is_awaited(self) -> bool:
        """As `OtherTargets`: an endpoint that starts, a region that is full, or, of batch work, any region."""
        context, attempt, router = self._context, self._attempt, self._proxy.router
        known = (attempt.region, router.region)
        tried = context.tried_regions.items()
        is_full = any(why is Reason.SATURATED for region, why in tried if region not in known)
        return is_full or (attempt.from_peer and context.is_batch) or router.awaits_endpoint(context)

    def is_at_fault(self) -> bool:
        """As `OtherTargets`."""
        return self._attempt.is_at_fault()

    def budget_allows(self) -> bool:
        """As `OtherTargets`."""
        return self._proxy.retry_budget.allows_one(self._now)

    def left_s(self) -> float:
        """Return how long (s) the request may wait for a target."""
        return self._context.received_at + self._context.max_wait_s - self._now

    def act(self, step: Step) -> RetryReason | Refusal | None:
        """Record what was decided about the attempt; returns what follows."""
        context, attempt, end = self._context, self._attempt, step.end
        if step.reported:
            context.engine_reported(step.reported)
        if end is AttemptEnd.FULL:
            attempt.erred(_BUSY)
        if end is AttemptEnd.REJECTED or end is AttemptEnd.FULL:
            attempt.rejected(context, step.rejected_because, self._now)
            if step.is_late:
                context.busy_endpoints -= {attempt.endpoint_name}
        elif end is AttemptEnd.ENGINE_FAILED:
            attempt.failed_first(context)
        elif end is AttemptEnd.LAST_FAILED:
            context.broken += 1
        elif end is AttemptEnd.LACKS_MODEL:
            context.lacks_model = True
        elif end is AttemptEnd.BROKE:
            attempt.unreachable(context, broke=True)
        elif end is AttemptEnd.LEFT_SUSPECT:
            attempt.moved_away(context)
        elif end is AttemptEnd.STALLED:
            attempt.failed(Outcome.STALLED)
        return step.then


def rejection_of(
    proxy: Proxy, context: RequestContext, attempt: Attempt, usage: StreamUsage | None, head: ResponseHead
) -> Reason | Withheld | None:
    """Why a response is not for the client: its target did not start the request, or failed; None if it may be."""
    status = head.status
    reason = attempt.on_head(status, head.by_name, head.headers)
    asked_usage = usage is not None and usage.flag is not None and not context.continuations
    shows_usage = asked_usage and usage is not None and usage.is_hidden and head.is_encoded_stream
    if status < 300 and reason is None and not shows_usage:
        return None
    target = FailedTarget(proxy, context, attempt, proxy.clock())
    request = context.request
    facts = ResponseFacts(status, reason, asked_usage, shows_usage, request.route, request.method)
    why = withheld_because(facts, target.facts(), target)
    if why is Withheld.REDIRECTED:
        attempt.failed(Outcome.ENGINE_ERROR)
    if why is Withheld.REDIRECTED or why is Withheld.ENGINE_ERROR:
        context.engine_reported(f"status {status}")
    return why


def after_withheld(
    proxy: Proxy, context: RequestContext, attempt: Attempt, why: Reason | Withheld, answer: WithheldAnswer
) -> RetryReason | Refusal | None:
    """What follows a response that was withheld at its head; None if the receiver of the response gets it."""
    if isinstance(attempt, LocalAttempt) and why in MAY_LACK_MODEL and answer.status in MISSING_STATUSES:
        if _lacks_model(context, attempt, answer):
            answer = answer._replace(lacks_model=True)
            if why is not Withheld.MODEL_MISSING:
                attempt.endpoint.check_models_soon()
        elif why is Withheld.MODEL_MISSING and context.request.route is not None:
            attempt.lacks_route = context.request.route.name
    target = FailedTarget(proxy, context, attempt, proxy.clock())
    return target.act(next_step.after_withheld(why, target.facts(), target, answer, target.left_s()))


def after_error(
    proxy: Proxy, context: RequestContext, attempt: Attempt, error: AnswerError, now: float
) -> RetryReason | Refusal | None:
    """What follows a response with status 200 that begins with an error; None if the client receives it. `now` in s."""
    if attempt.from_peer or next_step.is_of_request(error, context.request.body):
        return None
    attempt.erred(error)
    target = FailedTarget(proxy, context, attempt, now)
    return target.act(next_step.after_error(error, target.facts(), target, target.left_s()))


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
    peer_failed = attempt.peer_failed()
    stall: Stall | None = attempt.stall()
    if not peer_failed and stall is None and not overdue:
        return None
    target = FailedTarget(proxy, context, attempt, now)
    return target.act(next_step.while_awaiting(target.facts(), target, stall, overdue, peer_failed=peer_failed))


def refusal_without_retry(
    proxy: Proxy, context: RequestContext, attempt: Attempt, why: Reason | Withheld
) -> Refusal | None:
    """What a client receives in place of a response that is not for it, where the request cannot be sent again; None
    if the client receives the response."""
    target = FailedTarget(proxy, context, attempt, 0.0)
    return _refusal(target.act(next_step.without_retry(why, target.facts())))


def refusal_of_answer(proxy: Proxy, context: RequestContext, attempt: Attempt, error: AnswerError) -> Refusal | None:
    """What a client receives in place of a response with status 200 that is an error; as `refusal_without_retry`."""
    if next_step.is_of_request(error, context.request.body):
        return None
    attempt.erred(error)
    target = FailedTarget(proxy, context, attempt, 0.0)
    return _refusal(target.act(next_step.error_without_retry(error, target.facts())))


def _refusal(then: RetryReason | Refusal | None) -> Refusal | None:
    return then if isinstance(then, Refusal) else None


def refuse_retry(
    proxy: Proxy, context: RequestContext, why: RetryReason, now: float, *, has_begun: bool
) -> Refusal | None:
    """Take a retry from the budget; a refusal if the request cannot be sent again, or the budget is used up.

    Args:
        has_begun: whether the client has received a part of an answer.
    """
    route, budget = context.request.route, proxy.retry_budget
    is_repeatable = route is None or route.repeatable
    is_kept, is_answered = not context.request.body_dropped, has_begun and not context.continuations
    refusal = next_step.refuse_retry(why, is_kept=is_kept, is_repeatable=is_repeatable, is_answered=is_answered)
    if refusal is not None or not RETRY_RULES[why].spends_budget or budget.withdraw(now):
        return refusal
    return next_step.refusal_over_budget(why, budget.more_in_s(now))


def asks_origin(context: RequestContext, attempt: Attempt, status: int) -> bool:
    """Whether the response to a peer's request states that the origin may send the request to another region.

    Engines of this region failed it, or lack its model.
    """
    if status in MISSING_STATUSES:
        return context.lacks_model
    return context.route_context is not None and status in STATES_FAILURE and attempt.is_at_fault()


def may_send_again(context: RequestContext) -> bool:
    """Whether the client's request can be sent again after an engine may have started it."""
    request = context.request
    return may_run_again(
        is_whole=request.whole,
        is_kept=not request.body_dropped,
        is_repeatable=context.is_repeatable,
        is_for_object=context.is_for_object,
    )


def _lacks_model(context: RequestContext, attempt: LocalAttempt, answer: WithheldAnswer) -> bool:
    """Whether a response states that the engine lacks the model."""
    route, model = context.request.route, context.estimate.adapter or context.model
    name = model if attempt.rewrite is None else attempt.rewrite.engine_name(model)
    errors = ErrorFormat.OPENAI if route is None else route.errors
    return lacks_model(answer.text, errors, answer.status, name)
