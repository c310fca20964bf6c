"""What follows an attempt that failed before the client received a byte: one step, with its reason, for each failure.

A step is another attempt, the refusal of the request, or that the client receives the response; and what is recorded of
the attempt. A response that the client has begun to receive is not retried: `penstock/continuation` may continue it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.accounts.outcome_rules import RULES, Outcome, outcome_of_error, outcome_of_refusal
from penstock.admission.retry_after import MIN_RETRY_S
from penstock.answers.answer_errors import ABORTED, AnswerError, ErrorCause
from penstock.health.health_check import is_busy_text, is_rejection
from penstock.health.progress import Stall
from penstock.retries.failed_attempt import FailedAttempt, OtherTargets, may_leave_suspect, may_move, may_retry
from penstock.retries.retry_rules import MAX_ATTEMPTS, RETRIED_STATUSES, RETRY_RULES, RetryReason
from penstock.retries.withheld import Withheld, WithheldAnswer
from penstock.routing.reasons import Reason, Refusal

UNAVAILABLE: Final = "status 503"
"""The error of an engine that cannot serve now, which is no fault of the request."""

MAX_SHOWN: Final = 200
"""Size (bytes) of the beginning of an engine's error that a client receives in the message of a refusal."""

STATES_FAILURE: Final = RETRIED_STATUSES | {503}
"""Statuses of responses to forwarded requests that let the origin send the request to another region, if an engine is
the cause. Whether the request may be sent again, the origin knows."""

_OWN_IDS: Final = (b'"rid"', b'"request_id"')
"""Members in which a client names its request for SGLang and vLLM, and may abort it if policy has a route for that."""


class AttemptEnd(Enum):
    """How a failed attempt ended, as the agent records it."""

    NOTHING = auto()
    REJECTED = auto()
    """The target rejected the request without starting it."""
    FULL = auto()
    """The same, since the engine states that it is full."""
    LACKS_MODEL = auto()
    """The engine lacks the model, and this region has no other endpoint for the request."""
    ENGINE_FAILED = auto()
    """The engine failed the request, which leaves it."""
    LAST_FAILED = auto()
    """The engine failed the request, which no other target can serve."""
    BROKE = auto()
    """The connection broke after the request had been sent."""
    LEFT_SUSPECT = auto()
    """The request leaves a suspect endpoint."""
    STALLED = auto()
    """The engine did not begin to respond in time."""


class Step(NamedTuple):
    """What follows a failed attempt."""

    then: RetryReason | Refusal | None
    """Why the request is sent again, or its refusal; None if the client receives the response, or waits on."""
    end: AttemptEnd = AttemptEnd.NOTHING
    rejected_because: Reason = Reason.SATURATED
    """Why the target rejected the request, if it did."""
    reported: str = ""
    """The error that the engine reported, if the request leaves it for that; empty for none."""
    is_late: bool = False
    """Whether the full target accepts the request when it can wait no longer."""


def refuse_attempt(failed_because: Reason, attempts: int, failed: int, failures_left: int) -> Refusal | None:
    """The refusal of a request that may have no further attempt; None if it may.

    Args:
        failed_because: why the last attempt did not start.
        attempts: number of attempts so far; 0 for a request in its turn that endpoints rejected as busy.
        failed: number of engines that failed the request after they received it.
        failures_left: number of engines that may still fail it.
    """
    if attempts >= MAX_ATTEMPTS:
        return Refusal(failed_because, f"{MAX_ATTEMPTS} attempts failed before a response began")
    if failed and failures_left <= 0:
        detail = f"{failed} engines failed after they received the request, which may be the cause"
        return Refusal(Reason.ENGINE_FAILED, detail)
    return None


def refuse_retry(why: RetryReason, *, is_kept: bool, is_repeatable: bool, is_answered: bool) -> Refusal | None:
    """The refusal of a request that cannot be sent again after an attempt failed because of `why`; None if it can.

    Args:
        is_kept: whether the body is kept.
        is_repeatable: whether the route permits that a request is started twice.
        is_answered: whether the client has received a part of an answer that no other target continues.
    """
    if is_answered:
        return Refusal(Reason.ENGINE_FAILED, f"{why.value}, and the answer has begun")
    if not is_kept:
        return Refusal(Reason.ENGINE_FAILED, f"{why.value}, and the body was not kept for a retry")
    if RETRY_RULES[why].needs_repeatable and not is_repeatable:
        return Refusal(Reason.ENGINE_FAILED, f"{why.value}, and the engine may have begun")
    return None


def refusal_over_budget(why: RetryReason, more_in_s: float) -> Refusal:
    """The refusal of a request that the retry budget, which allows more retries in `more_in_s`, does not cover."""
    is_at_fault = RULES[RETRY_RULES[why].outcome].charges_endpoint
    reason = Reason.ENGINE_FAILED if is_at_fault else Reason.SATURATED
    return Refusal(reason, f"{why.value}, and the retry budget is used up", retry_after_s=more_in_s)


def after_rejection(reason: Reason, failed: FailedAttempt, others: OtherTargets, left_s: float) -> Step:
    """What follows a rejection: another target, unless a peer reports that its engine may have started.

    A request whose only target, by its Retry-After, accepts it when it can wait no longer is refused at once.

    Args:
        left_s: time (s) for which the request may wait.
    """
    if reason is Reason.ENGINE_TIMEOUT:
        return Step(Refusal(reason, f"the engine in {failed.region} did not begin in time"))
    if reason is Reason.ENGINE_FAILED and failed.from_peer and failed.failed_engines and not failed.is_repeatable:
        refusal = Refusal(reason, f"the engine in {failed.region} failed, and may have begun")
        return Step(refusal, AttemptEnd.REJECTED, reason)
    accepts_in_s = failed.accepts_in_s
    is_late = accepts_in_s > left_s
    if is_late and not (others.is_ready(leaves_region=False) or others.is_awaited()):
        who = failed.region if failed.from_peer else "the engine"
        detail = f"{who} accepts the request in {accepts_in_s:g} s"
        refusal = Refusal(Reason.SATURATED, detail, retry_after_s=accepts_in_s)
        return Step(refusal, AttemptEnd.REJECTED, reason, is_late=True)
    return Step(failed.rejected_as, AttemptEnd.REJECTED, reason, is_late=is_late)


def after_withheld(
    why: Reason | Withheld, failed: FailedAttempt, others: OtherTargets, answer: WithheldAnswer, left_s: float
) -> Step:
    """What follows a response that was withheld at its head; `left_s` as of `after_rejection`."""
    if isinstance(why, Reason):
        return after_rejection(why, failed, others, left_s)
    if why is Withheld.MODEL_MISSING:
        return Step(RetryReason.MODEL_MISSING, AttemptEnd.REJECTED, Reason.MODEL_NOT_READY)
    if why is Withheld.UNAUTHORIZED:
        return Step(RetryReason.CREDENTIAL_REJECTED, AttemptEnd.REJECTED, Reason.ENGINE_FAILED)
    if why is Withheld.UNEXPLAINED_503:
        return _after_unexplained(failed, others, answer)
    if why is Withheld.USAGE_REFUSED or why is Withheld.MODEL_MAY_BE_MISSING:
        # The origin of a forwarded request may know others.
        if answer.lacks_model and (not failed.is_forwarded or others.is_ready(leaves_region=False)):
            reported = f"status {answer.status}"
            return Step(RetryReason.MODEL_MISSING, AttemptEnd.REJECTED, Reason.MODEL_NOT_READY, reported)
        end = AttemptEnd.LACKS_MODEL if answer.lacks_model else AttemptEnd.NOTHING
        return Step(RetryReason.USAGE_REFUSED if why is Withheld.USAGE_REFUSED else None, end)
    if why is Withheld.REDIRECTED and not may_move(failed, others):
        return Step(refusal_of_error(failed.reported_error, is_forwarded=failed.is_forwarded))
    return Step(RetryReason.ENGINE_ERROR, AttemptEnd.ENGINE_FAILED)


def _after_unexplained(failed: FailedAttempt, others: OtherTargets, answer: WithheldAnswer) -> Step:
    """What follows a 503 of an engine with free slots, whose body states whether it failed.

    A client receives a refusal instead, as of a request for which no endpoint is ready: it states when to try again.
    """
    body = answer.text
    if not failed.from_peer and is_rejection(body):
        return Step(RetryReason.ENGINE_BUSY, AttemptEnd.FULL if is_busy_text(body) else AttemptEnd.REJECTED)
    if may_move(failed, others):
        return Step(RetryReason.ENGINE_ERROR, AttemptEnd.ENGINE_FAILED, reported=UNAVAILABLE)
    if not failed.is_forwarded and failed.is_repeatable:
        return Step(refusal_of_error(UNAVAILABLE, shown_of(body)), AttemptEnd.LAST_FAILED, reported=UNAVAILABLE)
    if answer.is_whole:
        return Step(None)
    return Step(Refusal(Reason.ENGINE_FAILED, f"the engine reported an error: {UNAVAILABLE}"))


def after_error(error: AnswerError, failed: FailedAttempt, others: OtherTargets, left_s: float) -> Step:
    """What follows a response with status 200 that begins with an error which the client need not receive.

    An engine that states that it is full has rejected the request, as by its status; `left_s` as there.
    """
    if error.cause is ErrorCause.BUSY:
        return after_rejection(Reason.SATURATED, failed, others, left_s)
    if not may_retry(failed, others, outcome_of_error(error)):
        return Step(None)
    return Step(RetryReason.ENGINE_ERROR, AttemptEnd.ENGINE_FAILED, reported=error.message)


def is_of_request(error: AnswerError, body: bytes | bytearray) -> bool:
    """Whether the request is the cause of an error with status 200: it is invalid, or the client itself, which named it
    in its body, may have let the engine abort the answer."""
    may_be_own = error is ABORTED and any(name in body for name in _OWN_IDS)
    return may_be_own or not RULES[outcome_of_error(error)].may_retry


def while_awaiting(
    failed: FailedAttempt, others: OtherTargets, stall: Stall | None, overdue: str, *, peer_failed: bool
) -> Step:
    """What follows while no response has begun: another target if this one failed or is suspect.

    Args:
        stall: why the endpoint has become suspect; None if it has not.
        overdue: why the target is overdue, which ends the request, since it may have started; empty to wait.
        peer_failed: whether the region that serves the request has failed.
    """
    if peer_failed:
        return Step(RetryReason.CLOSED_EARLY, AttemptEnd.BROKE)
    if stall is not None and may_leave_suspect(failed, others, stall):
        return Step(RetryReason.ENDPOINT_SUSPECT, AttemptEnd.LEFT_SUSPECT)
    if not overdue:
        return Step(None)
    return Step(Refusal(Reason.ENGINE_TIMEOUT, f"the engine {overdue}"), AttemptEnd.STALLED)


def without_retry(why: Reason | Withheld, failed: FailedAttempt) -> Step:
    """What follows a response that is not for the client, where the request cannot be sent again.

    The client receives errors whose cause may be the request, and those of other regions that are no refusals.
    """
    if failed.from_peer:
        return Step(_refusal_of_region(why, failed) if isinstance(why, Reason) else None)
    if why is Reason.SATURATED:
        return Step(Refusal(why, "the engine is full", retry_after_s=max(failed.accepts_in_s, MIN_RETRY_S)))
    reported = failed.reported_error
    if why is Reason.ENGINE_FAILED:
        reported = "it rejects the credential of its endpoint"
    elif why is Withheld.UNEXPLAINED_503:
        reported = UNAVAILABLE
    elif why is not Withheld.REDIRECTED:
        return Step(None)
    return Step(refusal_of_error(reported, is_forwarded=failed.is_forwarded), reported=reported)


def error_without_retry(error: AnswerError, failed: FailedAttempt) -> Step:
    """As `without_retry`, of a response with status 200 that is an error which the client need not receive."""
    if error.cause is ErrorCause.BUSY:
        return without_retry(Reason.SATURATED, failed)
    return Step(refusal_of_error(error.message, is_forwarded=failed.is_forwarded), reported=error.message)


def _refusal_of_region(why: Reason, failed: FailedAttempt) -> Refusal | None:
    """What a client receives if another region refused its request, and none else receives it; None if the request
    itself is the cause."""
    outcome, detail = outcome_of_refusal(why), f"{failed.region} has refused the request: {why.value}"
    if outcome is Outcome.CLIENT_ERROR:
        return None
    if why in (Reason.SATURATED, Reason.NO_IDLE_SLOTS):
        return Refusal(Reason.SATURATED, detail, retry_after_s=max(failed.accepts_in_s, MIN_RETRY_S))
    if why is Reason.ENGINE_FAILED or outcome is Outcome.STALLED:
        return Refusal(why, detail)
    return Refusal(Reason.NONE_READY, detail, retry_after_s=MIN_RETRY_S)


def refusal_of_error(reported: str, shown: str = "", *, is_forwarded: bool = False) -> Refusal:
    """The refusal of a request that no target can serve after an engine responded with an error.

    Args:
        reported: the error.
        shown: what the engine stated, for the client.
    """
    detail = f"the engine reported an error: {reported}{shown}"
    if reported == UNAVAILABLE and not is_forwarded:
        return Refusal(Reason.NONE_READY, detail, retry_after_s=MIN_RETRY_S)
    return Refusal(Reason.ENGINE_FAILED, detail)


def shown_of(body: bytes) -> str:
    """The beginning of the body of an error as a part of a message."""
    text = " ".join(body[:MAX_SHOWN].decode("utf-8", "replace").split())
    return f": {text}" if text else ""
