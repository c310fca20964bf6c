"""What follows a failed attempt: one step for each failure, no second run of what must not run twice, few engines."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock.answers.answer_errors import ABORTED, NOT_JSON, AnswerError, ErrorCause
from penstock.health.progress import Stall, StallReason
from penstock.retries.failed_attempt import FailedAttempt
from penstock.retries.next_step import (
    AttemptEnd,
    Step,
    after_error,
    after_rejection,
    after_withheld,
    is_of_request,
    refusal_over_budget,
    refuse_attempt,
    refuse_retry,
    while_awaiting,
    without_retry,
)
from penstock.retries.retry_rules import RETRY_RULES, RetryReason
from penstock.retries.withheld import ResponseFacts, Withheld, WithheldAnswer, withheld_because
from penstock.routing.reasons import Reason, Refusal
from tests.support.failed_attempts import Others, failed_attempt

MAX_ATTEMPTS, MAX_FAILED, MAX_BROKEN = 6, 3, 2
"""As documented, and not imported: a test fails if a tuned constant changes."""


class Closed(NamedTuple):
    """The connection closed before a response, after the request was sent or before."""

    was_sent: bool


class Waits(NamedTuple):
    """No response has begun."""

    stall: Stall | None
    overdue: str
    peer_failed: bool


Failure = Closed | Waits | AnswerError | WithheldAnswer | Reason
CRASHED, FULL = b"CUDA error: an illegal memory access failed", b'{"error": "queue is full"}'

ANSWERS = [
    WithheldAnswer(status, text, is_whole, lacks_model)
    for status in (301, 400, 401, 403, 404, 422, 500, 502, 503)
    for text in (CRASHED, FULL, b"")
    for is_whole in (True, False)
    for lacks_model in (True, False)
]
STALLS = [None, *(Stall(reason, "numbers") for reason in StallReason)]
REJECTIONS = (
    Reason.SATURATED,
    Reason.NO_IDLE_SLOTS,
    Reason.ENGINE_FAILED,
    Reason.ENGINE_TIMEOUT,
    Reason.UNREACHABLE,
    Reason.CONTEXT_LENGTH_EXCEEDED,
)
WAITS = [Waits(stall, overdue, lost) for stall in STALLS for overdue in ("", "is late") for lost in (True, False)]
FAILURES: list[Failure] = [
    *(Closed(was_sent) for was_sent in (True, False)),
    *WAITS,
    *(ABORTED, NOT_JSON, AnswerError(ErrorCause.BUSY, "full"), AnswerError(ErrorCause.REQUEST, "bad")),
    *ANSWERS,
    *REJECTIONS,
]


def combinations(**values: tuple[object, ...]) -> list[dict[str, object]]:
    """Every combination of the values, each as arguments by name."""
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


BOTH = (True, False)
FAILING: list[Failure] = [Closed(False), Closed(True), NOT_JSON, WithheldAnswer(500, b"", True), *WAITS]
ATTEMPTS = [
    failed_attempt(**known)
    for known in combinations(
        is_kept=BOTH, is_repeatable=BOTH, is_forwarded=BOTH, from_peer=BOTH, is_charged=BOTH, accepts_in_s=(0.0, 5.0)
    )
]
OTHERS = [Others(**known) for known in combinations(here=BOTH, elsewhere=BOTH, at_fault=BOTH, budget=BOTH)]  # type: ignore[arg-type]


def decide(failure: Failure, failed: FailedAttempt, others: Others) -> Step:
    """The step after a failure, with the last check before a retry, as the agent takes it."""
    step = _decide(failure, failed, others)
    if not isinstance(step.then, RetryReason):
        return step
    refusal = refuse_retry(step.then, is_kept=failed.is_kept, is_repeatable=failed.is_repeatable, is_answered=False)
    if refusal is None and RETRY_RULES[step.then].spends_budget and not others.budget:
        refusal = refusal_over_budget(step.then, 2.0)
    return step if refusal is None else step._replace(then=refusal)


def _decide(failure: Failure, failed: FailedAttempt, others: Others) -> Step:
    if isinstance(failure, Closed):
        if failure.was_sent:
            return Step(RetryReason.CLOSED_EARLY, AttemptEnd.BROKE)
        return Step(RetryReason.CONNECT_FAILED, AttemptEnd.REJECTED)
    if isinstance(failure, Waits):
        return while_awaiting(failed, others, failure.stall, failure.overdue, peer_failed=failure.peer_failed)
    if isinstance(failure, Reason):
        return after_rejection(failure, failed, others, left_s=1.0)
    if isinstance(failure, AnswerError):
        if failed.from_peer or is_of_request(failure, b"{}"):
            return Step(None)
        return after_error(failure, failed, others, left_s=1.0)
    why = withheld_because(ResponseFacts(failure.status, None, False, False, None, b"POST"), failed, others)
    return Step(None) if why is None else after_withheld(why, failed, others, failure, left_s=1.0)


def may_have_begun(failure: Failure, failed: FailedAttempt) -> bool:
    """Whether an engine may have begun the request."""
    if isinstance(failure, Closed):
        return failure.was_sent
    if isinstance(failure, Waits):
        return failure.peer_failed or failure.stall is None or failure.stall.reason is not StallReason.IDLE
    if isinstance(failure, Reason):
        of_peer = failed.from_peer and failed.failed_engines > 0
        return failure is Reason.ENGINE_TIMEOUT or (failure is Reason.ENGINE_FAILED and of_peer)
    if isinstance(failure, AnswerError):
        return failure.cause is ErrorCause.ENGINE
    return failure.status in (500, 502) or (failure.status == 503 and failure.text == CRASHED)


def test_each_failure_has_one_step_with_its_reason() -> None:
    for failure, failed, others in product(FAILURES, ATTEMPTS, OTHERS):
        step = decide(failure, failed, others)
        if isinstance(step.then, Refusal):
            assert step.then.detail
            assert step.then.retry_after_s is None or step.then.retry_after_s > 0.0
        elif step.then is None:
            assert step.end in (AttemptEnd.NOTHING, AttemptEnd.LACKS_MODEL), "what the client receives ends later"
        else:
            assert step.end is not AttemptEnd.NOTHING, "the next selection must not choose the same target"


def test_what_must_not_run_twice_is_sent_once() -> None:
    attempts = [failed for failed in ATTEMPTS if not failed.is_repeatable]
    for failure, failed in product(FAILURES, attempts):
        if may_have_begun(failure, failed):
            assert not isinstance(decide(failure, failed, Others()).then, RetryReason), (failure, failed)


def test_a_request_without_its_body_or_budget_is_not_sent_again() -> None:
    for failure, failed, others in product(FAILURES, ATTEMPTS, OTHERS):
        if not (failed.is_kept and others.budget):
            assert not isinstance(decide(failure, failed, others).then, RetryReason), (failure, failed)


def test_nothing_is_sent_again_once_the_client_has_a_part_of_an_answer() -> None:
    for why, is_kept, is_repeatable in product(RetryReason, BOTH, BOTH):
        refusal = refuse_retry(why, is_kept=is_kept, is_repeatable=is_repeatable, is_answered=True)
        assert refusal is not None, why


def test_a_response_is_left_only_for_a_target_that_is_ready() -> None:
    for answer, failed in product(ANSWERS, ATTEMPTS):
        then = decide(answer, failed, Others(here=False, elsewhere=False)).then
        assert then in (None, RetryReason.ENGINE_BUSY) or isinstance(then, Refusal), (answer, failed)


def test_a_request_stays_with_the_object_that_it_needs() -> None:
    for answer, repeatable in product(ANSWERS, BOTH):
        then = decide(answer, failed_attempt(needs_object=True, is_repeatable=repeatable), Others()).then
        assert then in (None, RetryReason.ENGINE_BUSY) or isinstance(then, Refusal), answer


def test_an_error_that_requests_cause_is_no_reason_to_leave() -> None:
    for answer in ANSWERS:
        assert decide(answer, failed_attempt(), Others(at_fault=False)).then is not RetryReason.ENGINE_ERROR, answer


@given(st.lists(st.sampled_from(FAILING), min_size=8, max_size=8), st.lists(st.booleans(), min_size=8, max_size=8))
def test_few_engines_fail_one_request(failures: list[Failure], from_peer: list[bool]) -> None:
    """However many targets are ready: engines that fail it, those that it may have ended, and attempts are few."""
    attempts = broken = elsewhere = ended = 0
    for failure, is_peer in zip(failures, from_peer, strict=True):
        left = (MAX_BROKEN if ended else MAX_FAILED) - broken - elsewhere
        if refuse_attempt(Reason.ENGINE_FAILED, attempts, broken + elsewhere, left) is not None:
            break
        attempts += 1
        failed = failed_attempt(
            attempts=attempts, broken=broken, failed_elsewhere=elsewhere, failures_left=left, from_peer=is_peer
        )
        step = decide(failure, failed, Others())
        ends = step.end is AttemptEnd.BROKE or step.end is AttemptEnd.LEFT_SUSPECT
        if ends or step.end is AttemptEnd.ENGINE_FAILED:
            broken, elsewhere, ended = broken + (not is_peer), elsewhere + is_peer, ended + ends
        if not isinstance(step.then, RetryReason):
            break
    assert attempts <= MAX_ATTEMPTS
    assert broken + elsewhere <= MAX_FAILED
    assert ended <= MAX_BROKEN


def test_nothing_is_sent_again_where_another_proxy_has_the_request() -> None:
    for why, failed in product([*REJECTIONS, *Withheld], ATTEMPTS):
        assert not isinstance(without_retry(why, failed).then, RetryReason)
