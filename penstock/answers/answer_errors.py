"""Errors in a response with status 200: where engines state them, and whose fault they are.

An error is at a fixed place: the member `error` of the answer or event, or the answer or event itself by its `object`
or `type`. What a model generates is at other places, and is never read as an error.

Sources: https://platform.openai.com/docs/api-reference/responses-streaming (`error`, `response.failed`),
https://platform.claude.com/docs/en/api/errors, vllm/entrypoints/openai/serving_engine.py,
python/sglang/srt/entrypoints/openai/serving_base.py of SGLang, router/src/server.rs of Text Generation Inference,
docs/api.md of Ollama.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from penstock.answers.usage_reader import Fields, Raw, members_of

MAX_MESSAGE_CHARS: Final = 200
MAX_DEPTH: Final = 2
"""Maximum depth of errors within errors."""


class ErrorCause(StrEnum):
    """Whose fault an error is."""

    ENGINE = "engine"
    BUSY = "busy"
    """The engine is full."""
    REQUEST = "request"
    """The request is invalid, or too long; another engine would respond with the same error."""


class AnswerError(msgspec.Struct, frozen=True):
    """An error that an engine reported in a response with status 200."""

    cause: ErrorCause
    message: str


NOT_JSON: Final = AnswerError(ErrorCause.ENGINE, "the body is not a JSON text")
NO_EVENT: Final = AnswerError(ErrorCause.ENGINE, "the stream has no event of an answer")
NO_ANSWER: Final = AnswerError(ErrorCause.ENGINE, "the body is no answer of the API")
"""The errors of responses that are no answers."""

ABORTED: Final = AnswerError(ErrorCause.ENGINE, "the engine aborted the answer")


_BUSY_CODES: Final = frozenset({429, 503, 529})

_CAUSES: Final = {
    **dict.fromkeys(
        ("overloaded_error", "overloaded", "rate_limit_error", "rate_limit_exceeded", "server_overloaded", "saturated"),
        ErrorCause.BUSY,
    ),
    **dict.fromkeys(
        (
            "BadRequestError",
            "badrequesterror",
            "bad_request",
            "content_filter",
            "context_length_exceeded",
            "invalid_image",
            "invalid_prompt",
            "invalid_request_error",
            "request_too_large",
            "template_error",
            "tool_error",
            "validation",
            "validation_error",
        ),
        ErrorCause.REQUEST,
    ),
}
"""Causes by the `type`, `error_type` or `code` of an error. All others are the engine's fault, except statuses 4xx
other than `_OF_ENGINE`, and 501."""

_OF_ENGINE: Final = frozenset({401, 403, 404, 408})

_FAILED_TYPE: Final = b'"response.failed"'
_ERROR: Final = b'"error"'
_FAILED: Final = b'"failed"'
_EMPTY: Final = frozenset({b"null", b'""', b"{}", b"[]"})
_TRUE: Final = b"true"
_QUOTE: Final = b'"'

_CAUSE_MEMBERS: Final = frozenset({"code", "status_code", "status", "type", "error_type"})
"""Where an error states its kind."""

_EXPLAINED: Final = _CAUSE_MEMBERS | {"message"}

_NO_FIELDS: Final[Fields] = {}
_NO_STATUS: Final = msgspec.Raw(b"null")

_any: Final = msgspec.json.Decoder()


def error_in(fields: Fields) -> AnswerError | None:
    """The error that an answer, or the data of an event, reports; None if it reports none."""
    kind = fields.get("type")
    kind_text = bytes(kind) if kind is not None else b""
    response = fields.get("response")
    if kind_text == _FAILED_TYPE and response is not None:
        return _error(response)
    raw = fields.get("error")
    if raw is not None and _is_stated(raw, fields):
        # An object of the Responses API states its error with the status `failed`.
        return _error(raw, beside=fields)
    status = fields.get("status")
    if status is not None and bytes(status) == _FAILED and "output" in fields:
        return AnswerError(ErrorCause.ENGINE, "the response failed")
    about = fields.get("object")
    if kind_text == _ERROR or (about is not None and bytes(about) == _ERROR):
        return _from_members(dict(fields))
    return None


def stated_abort(fields: Fields) -> AnswerError | None:
    """Why SGLang aborted an answer, where its finish reason states that as the status of an error; else None."""
    raw = fields.get("meta_info")
    details = members_of(raw) if raw is not None else None
    reason = members_of(details["finish_reason"]) if details is not None and "finish_reason" in details else None
    if reason is None or bytes(reason.get("status_code", _NO_STATUS)) in _EMPTY:
        # A null, where a client or an operator let the engine abort the request.
        return None
    return _from_members(reason)


def is_failed_object(fields: Fields) -> bool:
    """Whether an answer or event is about an object of the Responses API that failed, and no error of the request."""
    kind = fields.get("type")
    return ("id" in fields and "status" in fields) or (kind is not None and bytes(kind) == _FAILED_TYPE)


def _is_stated(raw: Raw, beside: Fields) -> bool:
    """Whether a member `error` is one: a text, an object with content, or `true` beside a message or cause.

    A number may be a result, such as the deviation of a prediction.
    """
    if bytes(memoryview(raw)[:4]) == _TRUE:
        return not _EXPLAINED.isdisjoint(beside)
    if bytes(memoryview(raw)[:1]) == _QUOTE:
        return bytes(raw) not in _EMPTY
    members = members_of(raw)
    return members is not None and [value for value in members.values() if bytes(value) not in _EMPTY] != []


def named_error(data: bytes) -> AnswerError:
    """The error in an event with the name `error` and data of any form."""
    return _error(msgspec.Raw(data))


def _error(raw: Raw, depth: int = 0, beside: Fields = _NO_FIELDS) -> AnswerError:
    """The error in a value; `beside` are the members next to it, where engines state its kind if it is a text."""
    members = members_of(raw)
    if members is None:
        text = _decoded(raw)
        shown = _shown(text if isinstance(text, str) and text else bytes(raw).decode("utf-8", "replace"))
        return AnswerError(_cause(beside), shown)
    inner = members.get("error")
    if inner is not None and depth < MAX_DEPTH and _is_stated(inner, members):
        return _error(inner, depth + 1, members)
    if _CAUSE_MEMBERS.isdisjoint(members):
        return msgspec.structs.replace(_from_members(members), cause=_cause(beside))
    return _from_members(members)


def _from_members(members: Fields) -> AnswerError:
    message = _decoded(members["message"]) if "message" in members else ""
    return AnswerError(_cause(members), _shown(message if isinstance(message, str) else ""))


def _cause(members: Fields) -> ErrorCause:
    values = {name: _decoded(members[name]) for name in _CAUSE_MEMBERS if name in members}
    for name in ("code", "status_code", "status"):
        code = values.get(name)
        if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
            code = int(code)
        if isinstance(code, int) and 400 <= code <= 599:
            if code in _BUSY_CODES:
                return ErrorCause.BUSY
            return ErrorCause.ENGINE if code in _OF_ENGINE or (code >= 500 and code != 501) else ErrorCause.REQUEST
    for name in ("code", "type", "error_type"):
        text = values.get(name)
        if isinstance(text, str) and text in _CAUSES:
            return _CAUSES[text]
    return ErrorCause.ENGINE


def _decoded(raw: Raw) -> Any:
    if len(memoryview(raw)) > 16 * MAX_MESSAGE_CHARS:
        return ""
    try:
        return _any.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _shown(message: str) -> str:
    return message[:MAX_MESSAGE_CHARS] or "the engine reported an error"
