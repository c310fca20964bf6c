"""Errors in responses with status 200: where they stand, whose fault they are, and what operators read of them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.answers.answer_errors import AnswerError, ErrorCause, error_in, named_error
from penstock.answers.usage_reader import members_of

ENGINE, BUSY, REQUEST = ErrorCause.ENGINE, ErrorCause.BUSY, ErrorCause.REQUEST
UNKNOWN = "the engine reported an error"


def found(record: dict[str, Any]) -> AnswerError | None:
    fields = members_of(msgspec.Raw(json.dumps(record).encode()))
    assert fields is not None
    return error_in(fields)


@pytest.mark.parametrize(
    ("record", "cause", "message"),
    [
        ({"error": {"message": "m", "type": "overloaded_error"}}, BUSY, "m"),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "m"}}, REQUEST, "m"),
        ({"object": "error", "message": "too long", "code": 400}, REQUEST, "too long"),
        ({"type": "error", "message": "m", "code": "context_length_exceeded"}, REQUEST, "m"),
        ({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "m"}}},
         BUSY, "m"),
        ({"type": "response.failed", "response": {"error": None}}, ENGINE, UNKNOWN),
        ({"status": "failed", "output": []}, ENGINE, "the response failed"),
        ({"error": "text"}, ENGINE, "text"),
        ({"error": "text", "error_type": "validation"}, REQUEST, "text"),
        ({"error": {"message": "m"}, "code": 429}, BUSY, "m"),
        ({"error": {"message": "m", "code": 500}, "code": 429}, ENGINE, "m"),
        ({"error": {"error": {"message": "inner", "code": 422}}}, REQUEST, "inner"),
        ({"error": {"error": "inner", "code": 422}}, REQUEST, "inner"),
        ({"error": {"error": {"error": {"error": {"message": "deep"}, "message": "m"}}}}, ENGINE, "m"),
        ({"error": {"message": 7}}, ENGINE, UNKNOWN),
        ({"error": {"message": "m" * 300}}, ENGINE, "m" * 200),
        ({"error": {"message": "m" * 3198}}, ENGINE, "m" * 200),
        ({"error": {"message": "m" * 3199}}, ENGINE, UNKNOWN),
    ],
)  # fmt: skip
def test_an_error_is_at_a_fixed_place(record: dict[str, Any], cause: ErrorCause, message: str) -> None:
    assert found(record) == AnswerError(cause, message)


@pytest.mark.parametrize(
    "record",
    [
        *({"error": nothing} for nothing in (None, False, True, "", {}, [], [1, 2], 0, 0.12, -3)),
        {"error": {"code": None, "message": ""}},
        {"status": "failed"},
        {"status": "completed", "output": []},
        {"object": "chat.completion", "choices": [{"message": {"error": "text"}}]},
        {"type": "message_delta", "delta": {"type": "error"}},
    ],
)
def test_what_a_model_generates_and_empty_errors_are_none(record: dict[str, Any]) -> None:
    assert found(record) is None


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        *dict.fromkeys((429, 503, 529, "429"), BUSY).items(),
        *dict.fromkeys((400, 402, 405, 413, 422, 499, "400"), REQUEST).items(),
        *dict.fromkeys((399, 401, 403, 404, 408, 500, 504, 599, 600, "0400", "x"), ENGINE).items(),
    ],
)
def test_the_status_in_an_error_decides_whose_fault_it_is(code: int | str, cause: ErrorCause) -> None:
    for name in ("code", "status_code", "status"):
        error = found({"error": {"message": "m", name: code}})
        assert error == AnswerError(cause, "m")


def test_an_event_that_is_named_error_has_data_of_any_form() -> None:
    assert named_error(b'{"message": "m", "code": 503}') == AnswerError(BUSY, "m")
    assert named_error(b'"text"') == AnswerError(ENGINE, "text")
    assert named_error(b"out of memory\xff") == AnswerError(ENGINE, "out of memory\ufffd")
    assert named_error(b"") == AnswerError(ENGINE, UNKNOWN)
