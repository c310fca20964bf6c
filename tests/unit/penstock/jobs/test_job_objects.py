"""Batches and asynchronous requests as the APIs show them: states, counts and times."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock.jobs.async_request import AsyncRequest, JobEnd, JobState, job_object, job_state
from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.batches.batch_view import batch_object
from penstock.jobs.batches.item_results import request_id, with_reasoning
from penstock.jobs.batches.message_batch import message_batch_object
from penstock.jobs.batches.new_batch import mismatches
from penstock.jobs.batches.request_line import LineProblem
from penstock.jobs.job_records import (
    BatchCounts,
    BatchEnd,
    BatchRecord,
    BatchUsage,
    Claim,
    FilePart,
    FileRecord,
    JobSender,
    result_file,
)
from penstock.jobs.queue_forecast import Forecast
from penstock.jobs.upload import UploadEnd, UploadRecord, UploadState, state_of, upload_object

NO_DEADLINE = 253_402_300_799
"""As documented, and not imported: a test fails if a tuned constant changes."""

SENDER = JobSender("acme", "open")
RECORD = BatchRecord("b1", SENDER, "file-1", "/v1/embeddings", "24h", 100, 86_500, 10, {"k": "v"})
USAGE = BatchUsage(20, 5, 8, ("small",))
CLAIM = Claim(1, "a", 1, 30.0, 110.7, BatchCounts(4, 3, 1, USAGE), per_s=0.5)
NEW = {
    "id": "b1",
    "object": "batch",
    "endpoint": "/v1/embeddings",
    "errors": None,
    "input_file_id": "file-1",
    "completion_window": "24h",
    "status": "validating",
    "output_file_id": None,
    "error_file_id": None,
    "created_at": 100,
    "in_progress_at": None,
    "expires_at": 86_500,
    "finalizing_at": None,
    "completed_at": None,
    "failed_at": None,
    "expired_at": None,
    "cancelled_at": None,
    "cancelling_at": None,
    "request_counts": {"total": 10, "completed": 0, "failed": 0},
    "model": None,
    "usage": None,
    "metadata": {"k": "v"},
    "expected_completion_at": None,
}
RUNNING = {
    "status": "in_progress",
    "in_progress_at": 110,
    "request_counts": {"total": 10, "completed": 4, "failed": 3},
    "model": "small",
    "usage": {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 25,
    },
    "expected_completion_at": 206,
}


def ended(state: BatchState, **members: Any) -> BatchEnd:
    return BatchEnd(state, 900.5, BatchCounts(6, 4, 2), 110.7, 899.9, **members)


@pytest.mark.parametrize(
    ("claim", "end", "is_cancelled", "changed"),
    [
        (None, None, False, {}),
        (None, None, True, {"status": "cancelling"}),
        (CLAIM, None, False, RUNNING),
        (CLAIM, None, True, RUNNING | {"status": "cancelling"}),
        (
            CLAIM,
            ended(BatchState.EXPIRED, output_file_id="file-2", error_file_id="file-3"),
            True,
            {
                "status": "expired",
                "in_progress_at": 110,
                "finalizing_at": 899,
                "expired_at": 900,
                "output_file_id": "file-2",
                "error_file_id": "file-3",
                "request_counts": {"total": 10, "completed": 6, "failed": 4},
            },
        ),
        (
            None,
            BatchEnd(BatchState.FAILED, 120.0, errors=(LineProblem("invalid_url", "text", 3, "url"),)),
            False,
            {
                "status": "failed",
                "failed_at": 120,
                "errors": {
                    "object": "list",
                    "data": [{"code": "invalid_url", "message": "text", "line": 3, "param": "url"}],
                },
            },
        ),
    ],
)
def test_a_batch_of_openai(
    claim: Claim | None, end: BatchEnd | None, is_cancelled: bool, changed: dict[str, Any]
) -> None:
    cancelling_at = 110 if is_cancelled else None
    if end is None:
        changed = changed | {"cancelling_at": cancelling_at}
    assert batch_object(RECORD, claim, end, cancelling_at=cancelling_at, now=200.0) == NEW | changed
    waits = claim is None and end is None and not is_cancelled
    shown = batch_object(RECORD, claim, end, cancelling_at=cancelling_at, now=200.0, expected_of_waiting=777)
    assert shown == NEW | changed | ({"expected_completion_at": 777} if waits else {})


@pytest.mark.parametrize(
    ("claim", "end", "is_cancelled", "status", "counts", "ended_at"),
    [
        (None, None, False, "in_progress", (10, 0, 0, 0, 0), None),
        (CLAIM, None, True, "canceling", (3, 4, 2, 1, 0), None),
        (CLAIM, ended(BatchState.CANCELLED), True, "ended", (0, 6, 2, 2, 0), "1970-01-01T00:15:00Z"),
        (CLAIM, ended(BatchState.EXPIRED), False, "ended", (0, 6, 2, 0, 2), "1970-01-01T00:15:00Z"),
        # What a failed batch did not run is an error.
        (None, BatchEnd(BatchState.FAILED, 0.0), False, "ended", (0, 0, 10, 0, 0), "1970-01-01T00:00:00Z"),
    ],
)
def test_a_message_batch(
    claim: Claim | None,
    end: BatchEnd | None,
    is_cancelled: bool,
    status: str,
    counts: tuple[int, ...],
    ended_at: str | None,
) -> None:
    names = ("processing", "succeeded", "errored", "canceled", "expired")
    cancelling_at = 110 if is_cancelled else None
    assert message_batch_object(RECORD, claim, end, cancelling_at=cancelling_at) == {
        "id": "b1",
        "type": "message_batch",
        "processing_status": status,
        "request_counts": dict(zip(names, counts, strict=True)),
        "created_at": "1970-01-01T00:01:40Z",
        "expires_at": "1970-01-02T00:01:40Z",
        "ended_at": ended_at,
        "archived_at": None,
        "cancel_initiated_at": "1970-01-01T00:01:50Z" if is_cancelled and end is None else None,
        "results_url": None if ended_at is None else "/v1/messages/batches/b1/results",
    }


def test_the_time_of_a_cancellation_outlives_the_batch() -> None:
    end = replace(ended(BatchState.CANCELLED), cancelling_at=110)
    assert batch_object(RECORD, None, end, cancelling_at=None, now=200.0)["cancelling_at"] == 110
    shown = message_batch_object(RECORD, None, end, cancelling_at=None)
    assert shown["cancel_initiated_at"] == "1970-01-01T00:01:50Z"
    # By an agent of an earlier release, which did not write the time.
    assert batch_object(RECORD, None, None, cancelling_at=0, now=200.0)["cancelling_at"] is None


JOB = AsyncRequest("job_1", SENDER, "POST", "/v1/images?x=1", (), 7, 100, NO_DEADLINE, completion_window="none")
QUEUED = {
    "id": "job_1",
    "object": "job",
    "status": "queued",
    "method": "POST",
    "path": "/v1/images",
    "created_at": 100,
    "completion_window": "none",
    "expires_at": None,
    "expected_start_at": 150,
    "expected_completion_at": 160,
    "started_at": None,
    "ended_at": None,
    "retained_until": None,
    "error": None,
    "progress": None,
    "result": None,
}
STARTED = Claim(1, "a", 1, 30.0, 110.7, received_bytes=50, progress=0.25)


@pytest.mark.parametrize(
    ("claim", "end", "is_cancelled", "changed"),
    [
        (None, None, False, {}),
        (
            STARTED,
            None,
            False,
            {
                "status": "in_progress",
                "started_at": 110,
                "expected_start_at": None,
                "progress": {"received_bytes": 50, "reported": 0.25},
            },
        ),
        (None, None, True, {"status": "cancelling", "expected_start_at": None}),
        (
            STARTED,
            JobEnd(JobState.COMPLETED, 120.9, 201, (("content-type", "image/png"),), "path", 9),
            True,
            {
                "status": "completed",
                "started_at": 110,
                "expected_start_at": None,
                "ended_at": 120,
                "retained_until": 1120,
                "result": {
                    "status_code": 201, "content_type": "image/png", "bytes": 9, "url": "/v1/jobs/job_1/result"
                },
            },
        ),
        (
            None,
            JobEnd(JobState.FAILED, 120.9, error="too large"),
            False,
            {
                "status": "failed",
                "expected_start_at": None,
                "ended_at": 120,
                "retained_until": 1120,
                "error": {"message": "too large"},
            },
        ),
    ],
)  # fmt: skip
def test_an_asynchronous_request(
    claim: Claim | None, end: JobEnd | None, is_cancelled: bool, changed: dict[str, Any]
) -> None:
    state = job_state(claim, end, is_cancelled=is_cancelled)
    assert job_object(JOB, claim, end, state, Forecast(150, 160), retention_s=1000.0) == QUEUED | changed


UPLOAD = UploadRecord("upload_1", "big.jsonl", 700, 100, 86_500)


def test_an_upload_is_pending_until_it_ends_or_expires() -> None:
    states = [state_of(UPLOAD, None, now) for now in (100.0, 86_499.9, 86_500.0)]
    assert states == [UploadState.PENDING, UploadState.PENDING, UploadState.EXPIRED]
    assert state_of(UPLOAD, UploadEnd(UploadState.CANCELLED), 1e9) is UploadState.CANCELLED


@pytest.mark.parametrize("file", [None, {"id": "file-1"}])
def test_an_upload_as_the_api_shows_it(file: dict[str, Any] | None) -> None:
    assert upload_object(UPLOAD, UploadState.PENDING, file) == {
        "id": "upload_1",
        "object": "upload",
        "bytes": 700,
        "created_at": 100,
        "filename": "big.jsonl",
        "purpose": "batch",
        "status": "pending",
        "expires_at": 86_500,
        "file": file,
    }


@pytest.mark.parametrize(("after_s", "expires_at"), [(None, None), (3_600, 4_500)])
def test_the_result_file_of_a_batch_has_all_parts_and_the_age_of_its_tenant(
    after_s: int | None, expires_at: int | None
) -> None:
    parts = [FilePart("p1", 10, 2), FilePart("p2", 30, 3)]
    batch = msgspec.structs.replace(RECORD, output_expires_after_s=after_s)
    assert result_file(batch, "file-9", "error", parts, 900) == FileRecord(
        "file-9", "b1_error.jsonl", "batch_output", 900, 40, tuple(parts), 5, expires_at=expires_at
    )


def test_the_first_line_of_each_other_url_is_a_problem() -> None:
    urls = {"/v1/chat/completions": 9, "/v1/embeddings": 1, "/v1/responses": 4}
    file = FileRecord("file-1", "f", "batch", 1, 1, (), urls=urls)
    assert mismatches(file, "/v1/embeddings") == tuple(
        LineProblem("mismatched_endpoint", f"line {line}: `url` is {url}, and not /v1/embeddings", line, "url")
        for line, url in ((4, "/v1/responses"), (9, "/v1/chat/completions"))
    )


def test_a_line_has_one_request_in_every_run() -> None:
    found = {request_id(batch, line) for batch in ("b1", "b2") for line in (1, 2, 11)}
    assert len(found) == 6
    assert request_id("b1", 1) in found
    assert all(len(each) == 32 for each in found)


@pytest.mark.parametrize(
    ("body", "reasoning_tokens"),
    [
        (b'{"usage":{"completion_tokens_details":{"reasoning_tokens":7}}}', 7),
        (b'{"usage":{"completion_tokens_details":null,"output_tokens_details":{"reasoning_tokens":6,"x":1}}}', 6),
        (b'{"usage":{"output_tokens_details":{"reasoning_tokens":99}}}', 9),
        (b'{"usage":{"output_tokens_details":{"reasoning_tokens":-1}}}', 0),
        (b'{"usage":{"output_tokens_details":{"reasoning_tokens":"7"}}}', 0),
        (b'{"usage":{"output_tokens_details":{"reasoning_tokens":null}}}', 0),
        (b'{"usage":null,"text":"reasoning_tokens"}', 0),
        (b'["reasoning_tokens"]', 0),
        (b"{}", 0),
    ],
)
def test_reasoning_tokens_are_those_of_the_result_and_a_part_of_the_answer(body: bytes, reasoning_tokens: int) -> None:
    assert with_reasoning(BatchUsage(1, 9), body) == BatchUsage(1, 9, reasoning_tokens=reasoning_tokens)
    assert with_reasoning(BatchUsage(1, 0), body) == BatchUsage(1, 0)


def test_usage_of_parts_of_a_batch_is_added() -> None:
    first, second = (
        BatchCounts(1, 2, 1, BatchUsage(1, 2, 3, ("b",), 4)),
        BatchCounts(10, 20, 10, BatchUsage(10, 20, 30, ("b",), 40)),
    )
    assert first.plus(second) == BatchCounts(11, 22, 11, BatchUsage(11, 22, 33, ("b",), 44))
    several = first.plus(BatchCounts(usage=BatchUsage(models=("a",)))).plus(
        BatchCounts(usage=BatchUsage(models=("c",)))
    )
    assert several.usage == BatchUsage(1, 2, 3, ("a", "b"), 4)
    claim = replace(CLAIM, counts=several)
    assert batch_object(RECORD, claim, None, cancelling_at=None, now=1.0)["model"] is None
