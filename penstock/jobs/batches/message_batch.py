"""Anthropic's Message Batches: the body that creates one, the batch as a JSON object, and the lines of its results.

Source: https://platform.claude.com/docs/en/api/creating-message-batches and the pages beside it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.batches.batch_view import state_of
from penstock.jobs.batches.item_results import ResultLines
from penstock.jobs.batches.request_line import LineProblem, RequestLine
from penstock.jobs.job_records import BatchCounts, BatchEnd, BatchRecord, Claim

ENDPOINT: Final = "/v1/messages"
"""The `url` of every request of a message batch."""

MAX_REQUESTS: Final = 100_000
"""Maximum number of requests of a message batch, as at Anthropic."""

_ENDED_AS: Final = {"batch_cancelled": "canceled", "batch_expired": "expired"}
"""Types of results by the codes of requests that did not run."""


_OTHER_LINE: Final = re.compile(r"line ([0-9]+)$")


class MessageRequest(msgspec.Struct, frozen=True):
    """A request of a message batch."""

    custom_id: str
    params: msgspec.Raw


class _Error(msgspec.Struct):
    type: str
    error: dict[str, Any]


def decode_requests(body: bytes, max_requests: int) -> list[MessageRequest]:
    """Return the requests of a body that creates a message batch.

    Decoding stops at the first one of too many: millions of small ones would take seconds, and gigabytes of memory.

    Raises:
        msgspec.DecodeError: the body is malformed, or has more than `max_requests`.
    """
    decoded = 0

    class Counted(MessageRequest, frozen=True):
        def __post_init__(self) -> None:
            nonlocal decoded
            decoded += 1
            if decoded > max_requests:
                raise ValueError(f"more than {max_requests} requests")

    decoded_body: Any = msgspec.json.decode(body, type=msgspec.defstruct("Body", [("requests", list[Counted])]))
    requests: list[MessageRequest] = decoded_body.requests
    return requests


def input_line(request: MessageRequest) -> bytes:
    """The line of an input file for a request; a JSON text contains line ends between its values only."""
    line = msgspec.json.encode(RequestLine(request.custom_id, ENDPOINT, request.params))
    return line.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"


def problem_text(problem: LineProblem) -> str:
    """The message for a problem of a line of the input file: it names the request by its index."""
    text = problem.message.removeprefix(f"line {problem.line}: ").replace("`body", "`params")
    text = _OTHER_LINE.sub(lambda found: f"requests.{int(found[1]) - 1}", text)
    return text if problem.line is None else f"requests.{problem.line - 1}: {text}"


def message_result_line(request_id: str, custom_id: str, status: int, body: bytes) -> bytes:
    """The line of a request that has a response without a problem."""
    if status < 400:
        return _line(custom_id, {"type": "succeeded", "message": msgspec.Raw(body.strip())})
    try:
        error: Any = msgspec.json.decode(body, type=_Error)
    except msgspec.ValidationError:
        text = body[:500].decode(errors="replace")
        error = _error("invalid_request_error" if status < 500 else "api_error", f"status {status}: {text}")
    return _line(custom_id, {"type": "errored", "error": error})


def message_error_line(request_id: str, custom_id: str, code: str, message: str) -> bytes:
    """The line of a request without a response."""
    ended_as = _ENDED_AS.get(code)
    if ended_as is not None:
        return _line(custom_id, {"type": ended_as})
    return _line(custom_id, {"type": "errored", "error": _error("api_error", f"{code}: {message} ({request_id})")})


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _line(custom_id: str, result: dict[str, Any]) -> bytes:
    line = msgspec.json.encode({"custom_id": custom_id, "result": result})
    return line.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"


MESSAGE_LINES: Final = ResultLines(message_result_line, message_error_line)


def message_batch_object(
    record: BatchRecord, claim: Claim | None, end: BatchEnd | None, *, cancelling_at: int | None
) -> dict[str, Any]:
    """The batch as a JSON object. `results_url` is relative; the SDKs resolve it.

    Args:
        claim: the newest claim.
        cancelling_at: see `batch_object`.
    """
    is_cancelled = cancelling_at is not None
    state = state_of(claim, end, is_cancelled=is_cancelled)
    initiated_at = cancelling_at if end is None else end.cancelling_at
    counts = end.counts if end is not None else BatchCounts() if claim is None else claim.counts
    left = record.requests - counts.completed - counts.failed
    unrun = counts.unrun
    if end is not None:
        status, errored = "ended", counts.failed - unrun + left
    else:
        status, errored = "canceling" if is_cancelled else "in_progress", counts.failed - unrun
    return {
        "id": record.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": 0 if end is not None else left,
            "succeeded": counts.completed,
            "errored": errored,
            "canceled": unrun if state is not BatchState.EXPIRED else 0,
            "expired": unrun if state is BatchState.EXPIRED else 0,
        },
        "created_at": _time(record.created_at),
        "expires_at": _time(record.expires_at),
        "ended_at": None if end is None else _time(end.at),
        "archived_at": None,
        "cancel_initiated_at": _time(initiated_at) if initiated_at else None,
        "results_url": None if end is None else f"/v1/messages/batches/{record.id}/results",
    }


def _time(unix_s: float) -> str:
    """A time as of RFC 3339."""
    return datetime.fromtimestamp(int(unix_s), UTC).isoformat().replace("+00:00", "Z")
