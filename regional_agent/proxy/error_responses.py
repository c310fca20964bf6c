"""Error responses: the HTTP status of each reason for which a request ends, and the response by the API of the route.

Sources of the formats: https://platform.openai.com/docs/guides/error-codes,
https://platform.claude.com/docs/en/api/errors (and the `anthropic` SDK, which reads `error.details.error_code`), the
Open Inference Protocol, and RFC 9457.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from math import ceil
from random import Random
from typing import Any, Final

import msgspec

from penstock.admission.retry_after import spread_retry_after_s
from penstock.policy.kinds.budgets import BudgetUnit
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.exceeded_budget import ExceededBudget
from regional_agent.http.headers.header_rules import REFUSAL_HEADER
from regional_agent.http.messages import Request
from regional_agent.proxy.rate_limit_headers import lines_of_states

OPENAI_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    421: "misdirected_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    451: "residency_error",
}

ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    451: "permission_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Other statuses below 500 are `invalid_request_error`, other statuses from 500 on `api_error`."""

LIMIT_TYPES: Final = {
    BudgetUnit.REQUESTS: "requests",
    BudgetUnit.CONCURRENT_REQUESTS: "requests",
    BudgetUnit.TOKENS: "tokens",
    BudgetUnit.INPUT_TOKENS: "tokens",
    BudgetUnit.OUTPUT_TOKENS: "tokens",
}
"""OpenAI's `error.type` of used-up budgets; of others `rate_limit_error`."""

NDJSON_TYPES: Final = frozenset({b"application/x-ndjson", b"application/ndjson", b"application/jsonl"})
EVENT_STREAM_TYPE: Final = b"text/event-stream"

_EVENT_END: Final = b"\n\n\r\n", b"\r\n\r\n\r\n"
"""The empty line that ends an event, followed by the end of its chunk."""
_LINE_END: Final = (b"\n\r\n",)

_SEQUENCE_NUMBER: Final = re.compile(rb'[{,]\s*"sequence_number"\s*:\s*(\d{1,15})')
"""Occurs in each event of OpenAI's Responses. In a string that a model generates, the quotes would be escaped."""


def error_body(
    error_format: ErrorFormat, status: int, code: str, message: str, *, param: str | None = None, request_id: str = ""
) -> bytes:
    """The body of an error response.

    Args:
        code: stable code for programs.
        param: the invalid field; None if the error concerns no single field.
        request_id: identifies the request; empty if it has no identifier yet.
    """
    if error_format is ErrorFormat.OPENAI:
        return openai_error(openai_type(status), code, message, param)
    return msgspec.json.encode(_OBJECTS[error_format](status, code, message, request_id))


def openai_error(error_type: str, code: str, message: str, param: str | None = None) -> bytes:
    """The body of an error response in OpenAI's format."""
    content: Any = {"message": message, "type": error_type, "param": param, "code": code}
    return msgspec.json.encode({"error": content})


def openai_limit(exceeded: ExceededBudget, *, is_spent: bool) -> tuple[str, str]:
    """OpenAI's `error.type` and `error.code` of a used-up budget; its SDKs and others know these words.

    Args:
        is_spent: whether the budget is of money, and a retry soon is useless.
    """
    if is_spent:
        return "insufficient_quota", "insufficient_quota"
    return LIMIT_TYPES.get(exceeded.unit, "rate_limit_error"), "rate_limit_exceeded"


def content_type(error_format: ErrorFormat) -> bytes:
    """The Content-Type of `error_body`."""
    return b"application/problem+json" if error_format is ErrorFormat.PROBLEM else b"application/json"


def stream_error(error_format: ErrorFormat, response_type: bytes, body: bytes, tail: bytes) -> bytes | None:
    """The error that ends a failed stream, so that a client does not treat the stream as complete.

    Args:
        response_type: Content-Type of the stream.
        body: the result of `error_body`.
        tail: the last bytes sent, with their chunk framing.

    Returns:
        The end of the stream; None if the stream has no format for an error, and the connection must be closed.
    """
    media_type = response_type.partition(b";")[0].strip().lower()
    if media_type == EVENT_STREAM_TYPE:
        name = b"event: error\n" if error_format is ErrorFormat.ANTHROPIC else b""
        if error_format is ErrorFormat.OPENAI and (numbers := _SEQUENCE_NUMBER.findall(tail)):
            name, body = b"event: error\n", _responses_error(body, int(numbers[-1]) + 1)
        event = b"%bdata: %b\n\n" % (name, body)
        return event if tail.endswith(_EVENT_END) else b"\n\n" + event
    if media_type in NDJSON_TYPES:
        line = body + b"\n"
        return line if tail.endswith(_LINE_END) else b"\n" + line
    return None


def _responses_error(body: bytes, number: int) -> bytes:
    """The data of the `error` event of OpenAI's Responses.

    `code`, `message` and `param` are where its documentation has them; `error` is what its SDKs raise.
    """
    error = msgspec.json.decode(body)["error"]
    event = {"type": "error", "sequence_number": number, "code": error["code"], "message": error["message"]}
    return msgspec.json.encode({**event, "param": error["param"], "error": error})


def openai_type(status: int) -> str:
    """OpenAI's `error.type` of a status."""
    return OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def anthropic_type(status: int) -> str:
    """Anthropic's `error.type` of a status."""
    return ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def _anthropic(status: int, code: str, message: str, request_id: str) -> dict[str, Any]:
    error = {"type": anthropic_type(status), "message": message, "details": {"error_code": code}}
    return {"type": "error", "error": error, "request_id": request_id or None}


def _kserve(_status: int, _code: str, message: str, _request_id: str) -> dict[str, Any]:
    return {"error": message}


def _problem(status: int, code: str, message: str, request_id: str) -> dict[str, Any]:
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        "code": code,
    }
    return {**problem, "request_id": request_id} if request_id else problem


_OBJECTS: Final[dict[ErrorFormat, Callable[[int, str, str, str], dict[str, Any]]]] = {
    ErrorFormat.ANTHROPIC: _anthropic,
    ErrorFormat.KSERVE: _kserve,
    ErrorFormat.PROBLEM: _problem,
}


REGIONS_HEADER = b"x-penstock-regions"
"""Response header with the entry regions to use instead, best first."""

ENTRIES_HEADER = b"x-penstock-entries"
"""Response header with the entry URLs of these regions, best first; absent if the policy states none."""

_RESPONSES: Final[dict[Reason, tuple[int, bool | None]]] = {
    Reason.INVALID_API_KEY: (401, False),
    Reason.TOO_MANY_FAILURES: (429, True),
    Reason.TENANT_SUSPENDED: (403, False),
    Reason.TIER_UNKNOWN: (403, False),
    Reason.ROUTE_NOT_PERMITTED: (403, False),
    Reason.MODEL_NOT_FOUND: (404, False),
    Reason.LOCATION_UNKNOWN: (451, False),
    Reason.NO_PERMITTED_REGION: (451, False),
    Reason.MISDIRECTED: (421, False),
    Reason.RESIDENCY_DENIED: (451, False),
    Reason.NONE_READY: (503, True),
    Reason.NO_POLICY: (503, True),
    Reason.SATURATED: (429, True),
    Reason.NO_IDLE_SLOTS: (429, True),
    Reason.BAD_ROUTE_CONTEXT: (403, False),
    Reason.ROUTE_CONTEXT_EXPIRED: (403, False),
    Reason.TOO_MANY_HOPS: (508, False),
    Reason.DEADLINE_PASSED: (504, None),
    Reason.ENGINE_FAILED: (502, None),
    Reason.BAD_REQUEST: (400, False),
    Reason.CONTEXT_LENGTH_EXCEEDED: (400, False),
    Reason.NOT_FOUND: (404, False),
    Reason.METHOD_NOT_ALLOWED: (405, False),
    Reason.UPGRADE_REQUIRED: (426, False),
    Reason.NOT_OFFERED: (501, False),
    Reason.BODY_TOO_LARGE: (413, False),
    Reason.HEAD_TOO_LARGE: (431, False),
    Reason.REQUEST_TIMEOUT: (408, True),
    Reason.TOO_MANY_CONNECTIONS: (429, True),
    Reason.TOO_MANY_REQUESTS: (429, True),
    Reason.QUOTA_EXCEEDED: (429, True),
    Reason.LOOP_DETECTED: (508, False),
    Reason.ENGINE_TIMEOUT: (504, None),
    Reason.STREAM_STALLED: (504, None),
    Reason.SHUTTING_DOWN: (503, True),
    Reason.LEDGER_FULL: (503, True),
    Reason.STORE_UNAVAILABLE: (503, True),
    Reason.NOT_KEPT: (504, False),
}
"""Status by reason, and whether the same request can succeed here later. Reasons that only exclude one region or
endpoint have none. docs/errors.md describes each."""

STATUS: Final[dict[Reason, int]] = {reason: status for reason, (status, _) in _RESPONSES.items()}

RETRIES: Final[dict[Reason, bool | None]] = {reason: retry for reason, (_, retry) in _RESPONSES.items()}
"""Whether the same request can succeed here later; None where an engine may have run it, so that the client decides.

Sent as `x-should-retry`, which the SDKs of OpenAI and Anthropic obey (`_base_client.py`); without it they repeat a
request after every status from 500 on, 501 and 508 included."""

MAX_SDK_WAIT_S: Final = 60
"""Maximum delay (s) that the same SDKs accept; they ignore a longer one, and retry within seconds. They read
`retry-after-ms` before `retry-after`."""

_SHOULD_RETRY: Final = {True: b"x-should-retry: true\r\n", False: b"x-should-retry: false\r\n", None: b""}


def error_format_of(request: Request) -> ErrorFormat:
    """The error format of a request's route; OpenAI's for a request without a route."""
    return ErrorFormat.OPENAI if request.route is None else request.route.errors


def refusal_response(
    refusal: Refusal, rng: Random | None, error_format: ErrorFormat = ErrorFormat.OPENAI, request_id: str = ""
) -> tuple[int, list[bytes], bytes]:
    """Status, header lines and body of a refusal.

    Args:
        rng: spreads the Retry-After times of clients; None for a peer, whose agent spreads them.
        error_format: the error format of the request's route.
        request_id: identifies the request; empty if the bytes received were not a valid request.
    """
    status = STATUS[refusal.reason]
    code, exceeded = refusal.reason.value, refusal.exceeded
    is_spent = exceeded is not None and exceeded.is_money and exceeded.retry_after_s > MAX_SDK_WAIT_S
    is_temporary = status == 401 and refusal.retry_after_s is not None
    lines = [
        b"content-type: %b\r\n" % content_type(error_format),
        b"%b: %b\r\n" % (REFUSAL_HEADER, refusal.reason.encode()),
        _SHOULD_RETRY[is_temporary or (RETRIES[refusal.reason] and not is_spent)],
    ]
    if status == 401:
        lines.append(b"www-authenticate: Bearer\r\n")
    if refusal.allow:
        lines.append(b"allow: %b\r\n" % ", ".join(refusal.allow).encode())
    if status == 426:
        lines.append(b"upgrade: websocket\r\n")
    if refusal.retry_after_s is not None:
        lines += _retry_after_lines(refusal.retry_after_s, rng, is_budget=exceeded is not None, is_spent=is_spent)
    if refusal.try_regions:
        lines.append(b"%b: %b\r\n" % (REGIONS_HEADER, ",".join(refusal.try_regions).encode()))
    if refusal.try_urls:
        lines.append(b"%b: %b\r\n" % (ENTRIES_HEADER, ",".join(refusal.try_urls).encode()))
    if request_id:
        lines.append(b"x-request-id: %b\r\n" % request_id.encode())
        if error_format is ErrorFormat.ANTHROPIC:
            lines.append(b"request-id: %b\r\n" % request_id.encode())
    if exceeded is not None:
        lines.append(lines_of_states(exceeded.states, error_format))
    if exceeded is not None and error_format is ErrorFormat.OPENAI:
        return status, lines, openai_error(*openai_limit(exceeded, is_spent=is_spent), refusal.detail)
    return status, lines, error_body(error_format, status, code, refusal.detail, request_id=request_id)


def _retry_after_lines(wait_s: float, rng: Random | None, *, is_budget: bool, is_spent: bool) -> list[bytes]:
    """The header lines by which a client, or with `rng` None a peer, learns when to retry."""
    if rng is None:
        return [b"retry-after: %d\r\n" % ceil(wait_s)]
    after_s = spread_retry_after_s(wait_s, rng)
    lines = [b"retry-after: %d\r\n" % after_s]
    if is_budget and wait_s <= MAX_SDK_WAIT_S:
        # An exact time, since the budget admits the next request then; spread as above.
        lines.append(b"retry-after-ms: %d\r\n" % ceil(wait_s * 1000 * (1 + rng.random() / 2)))
    elif after_s > MAX_SDK_WAIT_S and not is_spent:
        lines.append(b"retry-after-ms: %d\r\n" % rng.randint(MAX_SDK_WAIT_S * 500, MAX_SDK_WAIT_S * 1000))
    return lines


def message_error(refusal: Refusal, error_format: ErrorFormat, request_id: str) -> bytes:
    """The message that reports the refusal of a message to the client of a WebSocket; an event in OpenAI's format."""
    status, code = STATUS[refusal.reason], refusal.reason.value
    body = error_body(error_format, status, code, refusal.detail, request_id=request_id)
    return b'{"type":"error",' + body[1:] if error_format is ErrorFormat.OPENAI else body
