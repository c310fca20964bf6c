"""What follows a failed attempt, where availability or what the client receives depends on it."""

from __future__ import annotations

import pytest

from penstock.answers.answer_errors import ABORTED, NOT_JSON
from penstock.health.progress import Stall, StallReason
from penstock.retries.next_step import (
    AttemptEnd,
    after_rejection,
    after_withheld,
    error_without_retry,
    is_of_request,
    refusal_over_budget,
    while_awaiting,
    without_retry,
)
from penstock.retries.retry_rules import RetryReason
from penstock.retries.withheld import ResponseFacts, Withheld, WithheldAnswer, withheld_because
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routing.reasons import Reason, Refusal
from tests.support.failed_attempts import Others, failed_attempt

ANSWER = WithheldAnswer(503, b"CUDA error: an illegal memory access failed", is_whole=True)
ALONE = Others(here=False, elsewhere=False)


def head(
    status: int, *, asked_usage: bool = False, shows_usage: bool = False, method: bytes = b"POST"
) -> ResponseFacts:
    return ResponseFacts(status, None, asked_usage, shows_usage, OPENAI_ROUTES[0], method)


def reason_of(then: RetryReason | Refusal | None) -> Reason | None:
    return then.reason if isinstance(then, Refusal) else None


@pytest.mark.parametrize(
    ("status", "others", "expected"),
    [
        (500, Others(), Withheld.ENGINE_ERROR),
        (501, Others(), None),
        (504, Others(), None),
        (503, Others(), Withheld.UNEXPLAINED_503),
        (307, Others(), Withheld.REDIRECTED),
        (401, Others(), Withheld.UNAUTHORIZED),
        (401, Others(here=False), None),
        (404, Others(), Withheld.MODEL_MISSING),
        (404, Others(here=False), Withheld.MODEL_MAY_BE_MISSING),
        (400, Others(), Withheld.MODEL_MAY_BE_MISSING),
        (400, ALONE, None),
        (404, Others(budget=False), None),
    ],
)
def test_why_a_response_is_withheld(status: int, others: Others, expected: Withheld | None) -> None:
    assert withheld_because(head(status), failed_attempt(), others) is expected


def test_an_engine_may_refuse_the_flag_that_the_client_did_not_set() -> None:
    assert withheld_because(head(400, asked_usage=True), failed_attempt(), ALONE) is Withheld.USAGE_REFUSED
    shown = head(200, asked_usage=True, shows_usage=True)
    assert withheld_because(shown, failed_attempt(), ALONE) is Withheld.USAGE_REFUSED
    assert withheld_because(shown, failed_attempt(is_repeatable=False), ALONE) is None, "the engine has begun"


def test_a_condition_of_a_client_that_reads_is_answered_by_304() -> None:
    assert withheld_because(head(304, method=b"GET"), failed_attempt(), ALONE) is None
    assert withheld_because(head(304), failed_attempt(), ALONE) is Withheld.REDIRECTED


@pytest.mark.parametrize("known", [{"failures_left": 1}, {"attempts": 6}, {"is_for_object": True}])
def test_the_last_error_is_for_the_client(known: dict[str, object]) -> None:
    assert withheld_because(head(500), failed_attempt(**known), Others()) is None


def test_a_second_error_of_a_region_needs_another_region() -> None:
    here = Others(elsewhere=False)
    assert withheld_because(head(500), failed_attempt(), here) is Withheld.ENGINE_ERROR
    assert withheld_because(head(500), failed_attempt(broken=1), here) is None
    assert withheld_because(head(500), failed_attempt(broken=1), Others()) is Withheld.ENGINE_ERROR


def test_an_unexplained_503_that_is_the_last_states_when_to_try_again() -> None:
    step = after_withheld(Withheld.UNEXPLAINED_503, failed_attempt(), ALONE, ANSWER, 1.0)
    assert isinstance(step.then, Refusal)
    assert step.then.reason is Reason.NONE_READY
    assert step.then.retry_after_s
    assert "CUDA error" in step.then.detail
    assert step.end is AttemptEnd.LAST_FAILED
    forwarded = failed_attempt(is_forwarded=True)
    assert after_withheld(Withheld.UNEXPLAINED_503, forwarded, ALONE, ANSWER, 1.0).then is None
    cut = after_withheld(Withheld.UNEXPLAINED_503, forwarded, ALONE, ANSWER._replace(is_whole=False), 1.0)
    assert reason_of(cut.then) is Reason.ENGINE_FAILED


def test_a_503_without_a_reason_is_a_rejection() -> None:
    for body, end in ((b"", AttemptEnd.REJECTED), (b"queue is full", AttemptEnd.FULL)):
        step = after_withheld(Withheld.UNEXPLAINED_503, failed_attempt(), ALONE, ANSWER._replace(text=body), 1.0)
        assert (step.then, step.end) == (RetryReason.ENGINE_BUSY, end)


def test_the_agent_of_a_region_that_lacks_the_model_tells_the_origin() -> None:
    lacks, why = WithheldAnswer(404, b"", is_whole=True, lacks_model=True), Withheld.MODEL_MAY_BE_MISSING
    assert after_withheld(why, failed_attempt(), ALONE, lacks, 1.0).then is RetryReason.MODEL_MISSING
    step = after_withheld(why, failed_attempt(is_forwarded=True), ALONE, lacks, 1.0)
    assert (step.then, step.end) == (None, AttemptEnd.LACKS_MODEL)
    assert after_withheld(why, failed_attempt(), ALONE, lacks._replace(lacks_model=False), 1.0).then is None


def test_a_full_target_is_asked_again_unless_it_accepts_too_late() -> None:
    full = failed_attempt(accepts_in_s=5.0)
    assert after_rejection(Reason.SATURATED, full, ALONE, left_s=6.0).then is RetryReason.ENGINE_BUSY
    late = after_rejection(Reason.SATURATED, full, Others(here=False, elsewhere=False, awaited=False), left_s=4.0)
    assert isinstance(late.then, Refusal)
    assert (late.then.retry_after_s, late.is_late) == (5.0, True)
    assert after_rejection(Reason.SATURATED, full, ALONE, left_s=4.0).then is RetryReason.ENGINE_BUSY, "one is awaited"


def test_a_suspect_endpoint_is_left_once() -> None:
    stall = Stall(StallReason.SILENT, "numbers")
    for known, then in (({}, RetryReason.ENDPOINT_SUSPECT), ({"broken": 1}, None), ({"failed_elsewhere": 1}, None)):
        step = while_awaiting(failed_attempt(**known), Others(), stall, "", peer_failed=False)
        assert step.then is then, known
    assert while_awaiting(failed_attempt(), ALONE, stall, "", peer_failed=False).then is None


def test_what_a_client_may_have_aborted_itself_is_its_answer() -> None:
    assert is_of_request(ABORTED, b'{"rid": "mine"}')
    assert is_of_request(ABORTED, b'{"request_id": "mine"}')
    assert not is_of_request(ABORTED, b'{"model": "chat"}')
    assert not is_of_request(NOT_JSON, b'{"rid": "mine"}')


def test_a_refusal_over_budget_names_the_cause() -> None:
    assert refusal_over_budget(RetryReason.ENGINE_BUSY, 2.0).reason is Reason.SATURATED
    assert refusal_over_budget(RetryReason.CLOSED_EARLY, 2.0).reason is Reason.ENGINE_FAILED


@pytest.mark.parametrize(
    ("why", "from_peer", "expected"),
    [
        (Reason.SATURATED, False, Reason.SATURATED),
        (Reason.ENGINE_FAILED, False, Reason.ENGINE_FAILED),
        (Withheld.UNEXPLAINED_503, False, Reason.NONE_READY),
        (Withheld.REDIRECTED, False, Reason.ENGINE_FAILED),
        (Withheld.MODEL_MISSING, False, None),
        (Reason.NO_IDLE_SLOTS, True, Reason.SATURATED),
        (Reason.ENGINE_TIMEOUT, True, Reason.ENGINE_TIMEOUT),
        (Reason.UNREACHABLE, True, Reason.NONE_READY),
        (Reason.CONTEXT_LENGTH_EXCEEDED, True, None),
        (Withheld.ENGINE_ERROR, True, None),
    ],
)
def test_what_a_client_receives_without_a_retry(
    why: Reason | Withheld, from_peer: bool, expected: Reason | None
) -> None:
    assert reason_of(without_retry(why, failed_attempt(from_peer=from_peer)).then) is expected


def test_an_error_without_a_retry_names_what_the_engine_reported() -> None:
    step = error_without_retry(NOT_JSON, failed_attempt())
    assert isinstance(step.then, Refusal)
    assert NOT_JSON.message in step.then.detail
    assert step.reported == NOT_JSON.message
