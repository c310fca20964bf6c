"""A request that a client does not wait for on a connection (RFC 7240, `respond-async`): record, states, end.

The states form a table, as those of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from penstock.jobs.completion_window import DEFAULT_WINDOW, shown_deadline
from penstock.jobs.job_records import Claim, JobSender
from penstock.jobs.queue_forecast import Forecast

WINDOW_HEADER: Final = b"x-completion-window"
"""Header of an asynchronous request: its completion window."""

NO_CLAIM: Final = 0
"""In place of the number of a claim: the request was cancelled before an agent claimed it."""

MAX_HEADERS: Final = 64
"""Maximum number of headers that are kept of a request, and of a response."""

KEPT_RESPONSE_HEADERS: Final = (b"content-type", b"content-encoding", b"content-disposition", b"x-request-id")
"""Headers of the response that belong to the result."""


class JobState(StrEnum):
    """A state of an asynchronous request."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    """There is a response, of any status."""
    FAILED = "failed"
    """There is no response: it was incomplete or too large, or the policy in force forbids the request."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.QUEUED: frozenset({JobState.IN_PROGRESS, JobState.CANCELLING, JobState.CANCELLED, JobState.FAILED}),
    JobState.IN_PROGRESS: frozenset({JobState.COMPLETED, JobState.FAILED, JobState.EXPIRED, JobState.CANCELLING}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.COMPLETED, JobState.FAILED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.EXPIRED: frozenset(),
}
"""The allowed transitions; a state without any is an end. CANCELLING to COMPLETED: the response came before."""


class AsyncRequest(msgspec.Struct, frozen=True):
    """An asynchronous request as it was accepted. Its body is an object of its own, written before."""

    id: str
    sender: JobSender
    method: str
    target: str
    """Path and query."""
    headers: tuple[tuple[str, str], ...]
    """Headers that pass to engines."""
    body_bytes: int
    created_at: int
    """Unix time (s)."""
    expires_at: int
    """Unix time (s)."""
    webhook: str = ""
    """URL that receives the end of the request; empty for none."""
    completion_window: str = DEFAULT_WINDOW


class JobEnd(msgspec.Struct, frozen=True):
    """How an asynchronous request has ended. The store accepts one end of each."""

    state: JobState
    at: float
    """Unix time (s)."""
    status: int | None = None
    """Status of the response; None without one."""
    headers: tuple[tuple[str, str], ...] = ()
    body_path: str = ""
    """Path of the body of the response; empty without a response."""
    body_bytes: int = 0
    error: str = ""
    """Why there is no response."""
    claim: int | None = None
    """Number of the claim under which the request ended, or NO_CLAIM; None in stores of earlier releases."""


def job_state(claim: Claim | None, end: JobEnd | None, *, is_cancelled: bool) -> JobState:
    """The state of an asynchronous request.

    Args:
        claim: the newest claim.
        is_cancelled: whether cancellation was requested.
    """
    if end is not None:
        return end.state
    if is_cancelled:
        return JobState.CANCELLING
    return JobState.QUEUED if claim is None else JobState.IN_PROGRESS


def job_object(
    record: AsyncRequest,
    claim: Claim | None,
    end: JobEnd | None,
    state: JobState,
    expected: Forecast,
    *,
    retention_s: float,
) -> dict[str, Any]:
    """An asynchronous request as a JSON object; `result` is null without a response.

    Args:
        state: see `job_state`.
        expected: when it starts and ends.
        retention_s: see `JobStore.retention_s`.
    """
    result = None
    if end is not None and end.status is not None:
        result = {
            "status_code": end.status,
            "content_type": dict(end.headers).get("content-type"),
            "bytes": end.body_bytes,
            "url": f"/v1/jobs/{record.id}/result",
        }
    progress = None
    if end is None and claim is not None:
        progress = {"received_bytes": claim.received_bytes, "reported": claim.progress}
    return {
        "id": record.id,
        "object": "job",
        "status": state.value,
        "method": record.method,
        "path": record.target.partition("?")[0],
        "created_at": record.created_at,
        "completion_window": record.completion_window,
        "expires_at": shown_deadline(record.expires_at),
        "expected_start_at": expected.starts_at if state is JobState.QUEUED else None,
        "expected_completion_at": expected.ends_at,
        "started_at": None if claim is None else int(claim.started_at),
        "ended_at": None if end is None else int(end.at),
        "retained_until": None if end is None else int(end.at + retention_s),
        "error": None if end is None or not end.error else {"message": end.error},
        "progress": progress,
        "result": result,
    }
