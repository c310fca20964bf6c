"""Counters of responses: failures, the difference of two reads, and impossible values."""

from __future__ import annotations

import pytest

from penstock.accounts.outcome_rules import FAULTS_OF_POLICY, Outcome
from penstock.fleet.counts.request_counts import RequestCounts
from penstock.meters.request_tally import RequestTally
from penstock.routing.reasons import Reason, Refusal


def test_what_clients_cause_or_policy_ends_on_purpose_does_not_count_against_the_fleet() -> None:
    tally = RequestTally()
    for outcome in (Outcome.CLIENT_LEFT, Outcome.CLIENT_ERROR, Outcome.EXPIRED, Outcome.REVOKED, Outcome.SHUTDOWN):
        tally.ended("m", outcome, 1.0, 2.0, streaming=True)
    for reason in set(Reason) - FAULTS_OF_POLICY:
        tally.rejected(Refusal(reason, "", may_be_by_change=True))
    tally.rejected(Refusal(Reason.MISDIRECTED, "as under the policy before"))
    assert tally.report() == RequestCounts()


def test_errors_and_refusals_count_as_failed() -> None:
    tally = RequestTally()
    tally.ended("m", Outcome.OK, 0.5, 2.0, streaming=True)
    tally.ended("m", Outcome.OK, 1.5, 2.0, streaming=True)
    tally.ended("m", Outcome.ENGINE_ERROR, None, 2.0, streaming=True)
    tally.ended("m", Outcome.REFUSED, None, 2.0, streaming=True)
    tally.rejected(Refusal(Reason.NO_PERMITTED_REGION, "", may_be_by_change=True))
    reported = tally.report()
    assert reported == RequestCounts(ended=5, failed=3, begun=2, first_byte_s=2.0, first_byte_s2=2.5)
    assert (reported.failed_share, reported.mean_first_byte_s) == (0.6, 1.0)


def test_the_difference_of_two_looks_is_what_came_between() -> None:
    assert RequestCounts(10, 2, 8, 4.0, 3.0).since(RequestCounts(4, 1, 3, 1.0, 1.0)) == RequestCounts(6, 1, 5, 3.0, 2.0)
    assert RequestCounts(1, 0, 1, 1.0, 1.0) + RequestCounts(2, 1, 1, 0.5, 0.5) == RequestCounts(3, 1, 2, 1.5, 1.5)
    assert (RequestCounts().failed_share, RequestCounts().mean_first_byte_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    "answers",
    [
        RequestCounts(1, 2),
        RequestCounts(-1, -1),
        RequestCounts(1, 0, 2),
        RequestCounts(first_byte_s=float("nan")),
        RequestCounts(first_byte_s=1e308),
        RequestCounts(2**53),
    ],
)
def test_impossible_counters_are_refused(answers: RequestCounts) -> None:
    assert not answers.are_valid
