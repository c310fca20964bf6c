"""A batch as OpenAI's API shows it, from what the store has of it."""

from __future__ import annotations

from typing import Any, Final

from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.completion_window import expected_at, shown_deadline
from penstock.jobs.job_records import BatchCounts, BatchEnd, BatchRecord, BatchUsage, Claim

_ENDED_AT: Final = {
    BatchState.COMPLETED: "completed_at",
    BatchState.FAILED: "failed_at",
    BatchState.EXPIRED: "expired_at",
    BatchState.CANCELLED: "cancelled_at",
}


def state_of(claim: Claim | None, end: BatchEnd | None, *, is_cancelled: bool) -> BatchState:
    """The state of a batch.

    Args:
        claim: the newest claim.
        is_cancelled: whether cancellation was requested.
    """
    if end is not None:
        return end.state
    if is_cancelled:
        return BatchState.CANCELLING
    return BatchState.VALIDATING if claim is None else claim.state


def batch_object(
    record: BatchRecord,
    claim: Claim | None,
    end: BatchEnd | None,
    *,
    cancelling_at: int | None,
    now: float,
    expected_of_waiting: int | None = None,
) -> dict[str, Any]:
    """The batch as a JSON object (https://platform.openai.com/docs/api-reference/batch/object).

    `expected_completion_at` is not of OpenAI's API: the time (Unix, s) by the rate so far, or before an
    agent runs the batch `expected_of_waiting`. The time may be after `expires_at`.

    Args:
        cancelling_at: Unix time (s) of the request to cancel; None without one, 0 if its time is not known.
        now: Unix time (s).
        expected_of_waiting: expected completion (Unix time, s) of a batch that no agent runs yet; None: not known.
    """
    state = state_of(claim, end, is_cancelled=cancelling_at is not None)
    counts, started_at = BatchCounts(), None
    if end is not None:
        counts, started_at = end.counts, end.started_at
    elif claim is not None:
        counts, started_at = claim.counts, claim.started_at
    usage, errors = counts.usage, None
    if end is not None and end.errors:
        data = [
            {"code": each.code, "message": each.message, "line": each.line, "param": each.param} for each in end.errors
        ]
        errors = {"object": "list", "data": data}
    expected = expected_at(record, claim, now) if end is None else None
    if state is BatchState.VALIDATING:
        expected = expected_of_waiting
    shown: dict[str, Any] = {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "errors": errors,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": state.value,
        "output_file_id": None if end is None else end.output_file_id,
        "error_file_id": None if end is None else end.error_file_id,
        "created_at": record.created_at,
        "in_progress_at": _seconds(started_at),
        "expires_at": shown_deadline(record.expires_at),
        "finalizing_at": None if end is None else _seconds(end.finalizing_at),
        **dict.fromkeys(_ENDED_AT.values()),
        "cancelling_at": (cancelling_at if end is None else end.cancelling_at) or None,
        "request_counts": {"total": record.requests, "completed": counts.completed, "failed": counts.failed},
        "model": usage.models[0] if len(usage.models) == 1 else None,
        "usage": _usage_object(usage) if usage.models else None,
        "metadata": record.metadata,
        "expected_completion_at": expected,
    }
    if end is not None:
        shown[_ENDED_AT[end.state]] = _seconds(end.at)
    return shown


def _usage_object(usage: BatchUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.answer_tokens,
    }


def _seconds(at: float | None) -> int | None:
    return None if at is None else int(at)
