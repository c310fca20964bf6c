"""Whether the runs of a dead agent are paid for: the job store decides, by its claims and ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.jobs.async_request import JobEnd, JobState
from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.job_records import BatchCounts, BatchEnd, Claim, Segment
from penstock.jobs.store_paths import JobPaths
from penstock.ledger.spool_format import JobResult
from regional_agent.jobs.storage.batch_store import BatchStore
from regional_agent.jobs.storage.job_storage import JobStorages

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
        pytest.param([claim(1), claim(2, None)], ended(2), True, True, id="failed before anything was read"),
        pytest.param([claim(1), claim(2, None)], ended(2), False, False, id="failed, and never written"),
        pytest.param([], None, False, False, id="the batch is deleted"),
    ],
)
async def test_a_segment_counts_if_the_results_of_the_batch_have_it(
    tmp_path: Path, claims: Sequence[Claim], end: BatchEnd | None, is_written: bool, counts: bool | None
) -> None:
    batches, paths = BatchStore(JobStorages().of(f"file://{tmp_path}"), "eu-de"), JobPaths("t", BATCH)
    for each in claims:
        await batches.claim(paths, each)
    if end is not None:
        await batches.storage.put_record(paths.end, end)
    if is_written:
        await batches.storage.put_record(paths.segment(1, 3, "json"), Segment(((1, 1),), BatchCounts(1)))
    assert await batches.has_result(JobResult("eu-de", "t", BATCH, 1, 3)) is counts


@pytest.mark.parametrize(("number", "counts"), [(None, None), (1, True), (2, False)])
async def test_an_asynchronous_request_counts_if_its_claim_has_ended_it(
    tmp_path: Path, number: int | None, counts: bool | None
) -> None:
    jobs, paths = BatchStore(JobStorages().of(f"file://{tmp_path}"), "eu-de"), JobPaths("t", JOB)
    await jobs.claim(paths, claim(1, None))
    await jobs.claim(paths, claim(2, None))
    if number is not None:
        await jobs.storage.put_record(paths.end, JobEnd(JobState.COMPLETED, 0.0, claim=number))
    assert await jobs.has_result(JobResult("eu-de", "t", JOB, 1, 0)) is counts
