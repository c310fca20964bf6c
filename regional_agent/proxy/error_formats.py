"""The formats of error responses: the body of a refusal, and the end of a failed stream, by the API of the route.

Sources: https://platform.openai.com/docs/guides/error-codes, https://platform.claude.com/docs/en/api/errors (and the
`anthropic` SDK, which reads `error.details.error_code`), the Open Inference Protocol, and RFC 9457.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import msgspec

from penstock.http.response_head import EVENT_STREAM_TYPE, NDJSON_TYPES
from penstock.policy.kinds.budgets import BudgetUnit
from penstock.routes.route import ErrorFormat
from penstock.tenancy.exceeded_budget import ExceededBudget

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
