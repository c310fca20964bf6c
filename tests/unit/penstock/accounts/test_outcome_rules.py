"""The table of outcomes: complete, and nothing that a client alone causes moves health, evidence or objectives."""

from __future__ import annotations

import pytest

from penstock.accounts.outcome_rules import (
    FAULTS_OF_POLICY,
    RULES,
    Counts,
    Outcome,
    outcome_of_error,
    outcome_of_failure,
    outcome_of_refusal,
    outcome_of_status,
)
from penstock.answers.answer_errors import AnswerError, ErrorCause
from penstock.routing.reasons import Reason


def test_every_outcome_has_rules() -> None:
    assert list(RULES) == list(Outcome)


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_LEFT, Outcome.CLIENT_ERROR, Outcome.EXPIRED, Outcome.REVOKED])
def test_what_a_client_or_an_operator_causes_charges_nobody_else(outcome: Outcome) -> None:
    rules = RULES[outcome]
    assert (rules.charges_endpoint, rules.may_retry, rules.evidence) == (False, False, Counts.NOT)
    assert rules.objectives in (Counts.NOT, Counts.IF_LATE)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_outcome_that_charges_the_endpoint_is_no_usage_of_the_tenant(outcome: Outcome) -> None:
    rules = RULES[outcome]
    assert not (rules.charges_endpoint and rules.charges_tenant)
    assert rules.charges_endpoint <= (rules.evidence is Counts.FAILURE)


def test_a_tenant_pays_for_what_it_received_and_the_fleet_for_its_own_failures() -> None:
    unpaid = {each for each, rules in RULES.items() if not rules.charges_tenant}
    assert unpaid == {
        Outcome.REFUSED, Outcome.DEFERRED, Outcome.ENGINE_ERROR, Outcome.ENGINE_CUT, Outcome.STALLED, Outcome.SHUTDOWN
    }  # fmt: skip
    may_retry = {each for each, rules in RULES.items() if rules.may_retry}
    assert may_retry == {Outcome.REFUSED, Outcome.DEFERRED, Outcome.ENGINE_ERROR, Outcome.ENGINE_CUT}
    missed = {each for each, rules in RULES.items() if rules.objectives is Counts.FAILURE}
    assert missed == unpaid - {Outcome.DEFERRED} | {Outcome.TIMED_OUT}
    against = {each for each, rules in RULES.items() if rules.evidence is Counts.FAILURE}
    assert against == missed - {Outcome.SHUTDOWN}


@pytest.mark.parametrize("reason", [Reason.INVALID_API_KEY, Reason.MODEL_NOT_FOUND, Reason.QUOTA_EXCEEDED])
def test_what_strangers_send_is_no_evidence_against_a_policy(reason: Reason) -> None:
    assert reason not in FAULTS_OF_POLICY


@pytest.mark.parametrize(
    ("reason", "own_deadline", "refused", "failed"),
    [
        (Reason.DEADLINE_PASSED, False, Outcome.TIMED_OUT, Outcome.TIMED_OUT),
        (Reason.DEADLINE_PASSED, True, Outcome.EXPIRED, Outcome.EXPIRED),
        (Reason.SATURATED, True, Outcome.REFUSED, Outcome.ENGINE_CUT),
        (Reason.ENGINE_FAILED, False, Outcome.REFUSED, Outcome.ENGINE_CUT),
        (Reason.ENGINE_TIMEOUT, True, Outcome.STALLED, Outcome.STALLED),
        (Reason.STREAM_STALLED, True, Outcome.STALLED, Outcome.STALLED),
        (Reason.INVALID_API_KEY, False, Outcome.REVOKED, Outcome.REVOKED),
        (Reason.MODEL_NOT_FOUND, False, Outcome.REVOKED, Outcome.REVOKED),
        (Reason.BAD_REQUEST, False, Outcome.CLIENT_ERROR, Outcome.CLIENT_ERROR),
    ],
)
def test_the_outcome_of_a_reason(reason: Reason, own_deadline: bool, refused: Outcome, failed: Outcome) -> None:
    assert outcome_of_refusal(reason, own_deadline=own_deadline) is refused
    assert outcome_of_failure(reason, own_deadline=own_deadline) is failed


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (Reason.NONE_READY, Outcome.ENGINE_ERROR),
        (Reason.ENGINE_FAILED, Outcome.ENGINE_ERROR),
        (Reason.SATURATED, Outcome.REFUSED),
        (Reason.DEADLINE_PASSED, Outcome.TIMED_OUT),
        (Reason.NO_PERMITTED_REGION, Outcome.REVOKED),
    ],
)
def test_a_failed_attempt_is_the_cause_of_a_refusal_only_if_no_target_is_left(
    reason: Reason, expected: Outcome
) -> None:
    assert outcome_of_refusal(reason, failed_as=Outcome.ENGINE_ERROR) is expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (Reason.SATURATED, Outcome.DEFERRED),
        (Reason.NONE_READY, Outcome.REFUSED),
        (Reason.DEADLINE_PASSED, Outcome.TIMED_OUT),
    ],
)
def test_batch_work_that_finds_no_idle_slot_is_no_failure(reason: Reason, expected: Outcome) -> None:
    assert outcome_of_refusal(reason, is_batch=True) is expected


def test_the_outcome_of_a_complete_response() -> None:
    assert [outcome_of_status(status) for status in (200, 304, 400, 499, 500, 501, 529)] == [
        Outcome.OK,
        Outcome.OK,
        Outcome.CLIENT_ERROR,
        Outcome.CLIENT_ERROR,
        Outcome.ENGINE_ERROR,
        Outcome.CLIENT_ERROR,
        Outcome.ENGINE_ERROR,
    ]


@pytest.mark.parametrize("cause", list(ErrorCause))
def test_an_error_in_a_response_charges_the_endpoint_unless_the_request_caused_it(cause: ErrorCause) -> None:
    expected = Outcome.CLIENT_ERROR if cause is ErrorCause.REQUEST else Outcome.ENGINE_ERROR
    assert outcome_of_error(AnswerError(cause, "")) is expected
