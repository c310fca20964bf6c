"""What follows the response to one request of a batch, and the line that a result has in a result file.

Source: https://platform.openai.com/docs/api-reference/batch/request-output
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.job_records import BatchUsage

MAX_RUNS: Final = 3
"""Runs of a request whose engine failed; the last response is its result."""

MAX_LOST_RUNS: Final = 2
"""Runs of a request whose response broke off, or exceeded MAX_RESULT_BYTES."""

MAX_RESULT_BYTES: Final = 64 * 1024 * 1024
"""Maximum size (bytes) of a response; a larger one is replaced by an error."""

RETRY_BASE_S: Final = 1.0
RETRY_CAP_S: Final = 60.0
"""Bounds (s) of the time before a request runs again that was refused for lack of room or budget."""

WAITS: Final = frozenset({"saturated", "quota_exceeded", "none_ready", "no_policy", "shutting_down", "ledger_full"})
"""Refusals of requests that no engine has started, and that can succeed later."""

UNRUN: Final = {
    BatchState.EXPIRED: ("batch_expired", "the completion window ended before the request could run"),
    BatchState.CANCELLED: ("batch_cancelled", "the batch was cancelled before the request could run"),
}
"""Code and message of a request that did not run, by the end of its batch."""

_ENGINE_ERRORS: Final = frozenset({500, 502, 503, 504})


class Next(Enum):
    """What follows the response to a request."""

    RESULT = "result"
    """The response is the result."""
    RUN_AGAIN = "run again"
    """An engine failed; the request runs again, up to MAX_RUNS times."""
    WAIT = "wait"
    """No engine has started the request; it runs later, until the batch expires."""


class RequestEvent(StrEnum):
    """What is counted of the requests of batches."""

    COMPLETED = "completed"
    FAILED = "failed"
    RAN_AGAIN = "ran_again"
    WAITED = "waited"


def next_of(status: int, refusal: str, runs: int, *, engine_failed: bool) -> Next:
    """What follows a response.

    Args:
        status: the status of the response.
        refusal: the reason of the agent's refusal; empty for the response of an engine.
        runs: how often the request has run, this time included.
        engine_failed: whether an engine that had received the request failed before the refusal.
    """
    is_wait = refusal in WAITS
    if is_wait and not engine_failed:
        return Next.WAIT
    if (is_wait or status in _ENGINE_ERRORS) and runs < MAX_RUNS:
        return Next.RUN_AGAIN
    return Next.RESULT


def request_id(batch: str, line: int) -> str:
    """The identifier of a line's request, which is the same in every run."""
    return sha256(f"{batch}/{line}".encode()).hexdigest()[:32]


class ResultLines(NamedTuple):
    """The format of the lines of a result file."""

    result: Callable[[str, str, int, bytes], bytes]
    """The line of a request with a response that is JSON: request id, `custom_id`, status and body."""
    error: Callable[[str, str, str, str], bytes]
    """The line of a request without a response: request id, `custom_id`, code and message."""


def problem_of(status: int, body: bytes) -> tuple[str, str] | None:
    """Code and message of a response that no line can contain, because it is not JSON; None for another one."""
    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "response_not_json", f"the response with status {status} is not JSON"
    return None


class _Details(msgspec.Struct):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    completion_tokens_details: _Details | None = None
    """Of a chat."""
    output_tokens_details: _Details | None = None
    """Of a response of `/v1/responses`."""


class _Result(msgspec.Struct):
    usage: _Usage | None = None


_results: Final = msgspec.json.Decoder(_Result)


def with_reasoning(usage: BatchUsage, body: bytes) -> BatchUsage:
    """What a request has used, with the reasoning tokens that its response states."""
    if not usage.answer_tokens or body.find(b'"reasoning_tokens"') < 0:
        return usage
    try:
        stated = _results.decode(body).usage or _Usage()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return usage
    details = stated.completion_tokens_details or stated.output_tokens_details or _Details()
    return replace(usage, reasoning_tokens=max(0, min(details.reasoning_tokens, usage.answer_tokens)))


def result_line(request_id: str, custom_id: str, status: int, body: bytes) -> bytes:
    """The line of a request that has a response without a problem."""
    response: Any = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body.strip())}
    line = {"id": f"batch_req_{request_id}", "custom_id": custom_id, "response": response, "error": None}
    # A response may contain line ends between its values, and none within its strings.
    return msgspec.json.encode(line).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"


def error_line(request_id: str, custom_id: str, code: str, message: str) -> bytes:
    """The line of a request without a response."""
    line = {
        "id": f"batch_req_{request_id}",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    return msgspec.json.encode(line) + b"\n"


OPENAI_LINES: Final = ResultLines(result_line, error_line)
