"""Whether a result that was or may have been written counts, by the claims and the end of its job."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.jobs.async_request import JobEnd, JobState
from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.claims import next_claim, result_counts
from penstock.jobs.job_records import BatchCounts, BatchEnd, Claim
from penstock.ledger.spool_format import JobResult

BATCH, JOB = "batch_" + "0" * 32, "job_" + "0" * 32


def claim(number: int, accepted: tuple[tuple[int, int], ...] | None = ()) -> Claim:
    return Claim(number, "a", 1, 0.0, 0.0, accepted=accepted)


def ended(number: int | None) -> BatchEnd:
    return BatchEnd(BatchState.COMPLETED, 0.0, claim=number)


@pytest.mark.parametrize(
    ("claims", "end", "is_written", "counts"),
    [
        pytest.param([claim(1)], None, True, True, id="the next claim will read it"),
        pytest.param([claim(1)], None, False, None, id="its write may still arrive"),
        pytest.param([claim(1), claim(2, None)], None, True, None, id="the next claim may have looked before"),
        pytest.param([claim(1), claim(2, ((1, 3),))], None, True, True, id="the next claim has read it"),
        pytest.param([claim(1), claim(2, ((1, 2),))], None, True, False, id="it was written too late"),
        pytest.param([claim(1), claim(2, ((1, 3),)), claim(3, None)], None, True, True, id="read by an earlier claim"),
        pytest.param([claim(1)], ended(1), True, True, id="its own claim has ended the batch"),
        pytest.param([claim(1), claim(2, ((1, 2),))], ended(1), True, True, id="ended before the next claim"),
        pytest.param([claim(1), claim(2, ((1, 2),))], ended(2), True, False, id="the next claim has ended the batch"),
        pytest.param([claim(1), claim(2, ((1, 3),))], ended(None), True, True, id="by an agent of an earlier release"),
        pytest.param([claim(1)], ended(None), False, True, id="its own claim has ended it in an earlier release"),
        pytest.param([claim(1), claim(2, None)], ended(2), True, True, id="failed before anything was read"),
        pytest.param([claim(1), claim(2, None)], ended(2), False, False, id="failed, and never written"),
        pytest.param([], None, False, False, id="the batch is deleted"),
    ],
)
def test_a_segment_counts_if_the_results_of_the_batch_have_it(
    claims: Sequence[Claim], end: BatchEnd | None, is_written: bool, counts: bool | None
) -> None:
    newest, later = claims[-1] if claims else None, claims[:0:-1]
    assert result_counts(JobResult("eu-de", "t", BATCH, 1, 3), newest, later, end, exists=is_written) is counts


@pytest.mark.parametrize(("number", "counts"), [(None, None), (1, True), (2, False)])
def test_an_asynchronous_request_counts_if_its_claim_has_ended_it(number: int | None, counts: bool | None) -> None:
    end = None if number is None else JobEnd(JobState.COMPLETED, 0.0, claim=number)
    assert result_counts(JobResult("eu-de", "t", JOB, 1, 0), claim(2, None), (), end, exists=False) is counts


def test_an_agent_continues_where_the_newest_claim_was() -> None:
    assert next_claim(None, "a", 5, 100.0) == Claim(1, "a", 5, 130.0, 100.0)
    before = Claim(3, "b", 7, 90.0, 60.0, BatchCounts(4, 3, 1), per_s=2.0)
    assert next_claim(before, "a", 5, 100.0) == Claim(4, "a", 5, 130.0, 60.0, BatchCounts(4, 3, 1))
