"""The bytes of error responses in each format, and the ends of failed streams."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.accounts.refusal_statuses import STATUS
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Reason, Refusal
from regional_agent.proxy.error_formats import anthropic_type, error_body, openai_type, stream_error
from regional_agent.proxy.error_responses import refusal_response

EVENTS, LINES = b"text/event-stream; charset=utf-8", b"application/x-ndjson"


@pytest.mark.parametrize(
    ("error_format", "expected"),
    [
        (
            ErrorFormat.OPENAI,
            b'{"error":{"message":"full","type":"rate_limit_error","param":null,"code":"saturated"}}',
        ),
        (
            ErrorFormat.ANTHROPIC,
            b'{"type":"error","error":{"type":"rate_limit_error","message":"full",'
            b'"details":{"error_code":"saturated"}},"request_id":"r1"}',
        ),
        (ErrorFormat.KSERVE, b'{"error":"full"}'),
        (
            ErrorFormat.PROBLEM,
            b'{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"full","code":"saturated",'
            b'"request_id":"r1"}',
        ),
    ],
)
def test_body_of_each_format(error_format: ErrorFormat, expected: bytes) -> None:
    assert error_body(error_format, 429, "saturated", "full", request_id="r1") == expected


@pytest.mark.parametrize("error_format", list(ErrorFormat))
@pytest.mark.parametrize("reason", list(STATUS))
def test_every_refusal_has_a_body_in_every_format(error_format: ErrorFormat, reason: Reason) -> None:
    status, lines, body = refusal_response(Refusal(reason, "why"), Random(1), error_format, "r1")
    assert status == STATUS[reason]
    assert "why" in str(msgspec.json.decode(body))
    problem = b"content-type: application/problem+json\r\n" in lines
    assert problem == (error_format is ErrorFormat.PROBLEM)
    assert b"x-penstock-refusal: %b\r\n" % reason.encode() in lines


def test_a_request_without_identifier_has_none_in_the_body() -> None:
    body = msgspec.json.decode(error_body(ErrorFormat.ANTHROPIC, 404, "not_found", "no such path"))
    assert body["request_id"] is None
    assert "request_id" not in msgspec.json.decode(error_body(ErrorFormat.PROBLEM, 404, "not_found", "no such path"))


def test_types_of_statuses_that_have_none_of_their_own() -> None:
    assert [anthropic_type(status) for status in (400, 408, 418, 500, 502, 508)] == [
        *["invalid_request_error"] * 3,
        *["api_error"] * 3,
    ]
    assert [openai_type(status) for status in (405, 426, 501)] == [*["invalid_request_error"] * 2, "server_error"]


@pytest.mark.parametrize(
    ("error_format", "response_type", "tail", "expected"),
    [
        (ErrorFormat.OPENAI, EVENTS, b"data: 1\n\n\r\n", b"data: {}\n\n"),
        (ErrorFormat.OPENAI, EVENTS, b"data: 1\r\n\r\n\r\n", b"data: {}\n\n"),
        (ErrorFormat.OPENAI, EVENTS, b"data: in the middle\r\n", b"\n\ndata: {}\n\n"),
        (ErrorFormat.ANTHROPIC, EVENTS, b"data: 1\n\n\r\n", b"event: error\ndata: {}\n\n"),
        (ErrorFormat.KSERVE, EVENTS, b"data: 1\n\n\r\n", b"data: {}\n\n"),
        (ErrorFormat.KSERVE, LINES, b'{"a":1}\n\r\n', b"{}\n"),
        (ErrorFormat.KSERVE, LINES, b'{"a":\r\n', b"\n{}\n"),
        (ErrorFormat.KSERVE, b"audio/wav", b"\0\r\n", None),
        (ErrorFormat.OPENAI, b"", b"", None),
    ],
)
def test_end_of_a_stream_that_failed(
    error_format: ErrorFormat, response_type: bytes, tail: bytes, expected: bytes | None
) -> None:
    assert stream_error(error_format, response_type, b"{}", tail) == expected


def test_a_stream_of_responses_ends_with_the_error_event_of_its_api() -> None:
    body = error_body(ErrorFormat.OPENAI, 503, "shutting_down", "the agent stops")
    sent = b'data: {"type":"response.output_text.delta","sequence_number": 7,"delta":"\\"sequence_number\\":9"}\n\n\r\n'
    end = stream_error(ErrorFormat.OPENAI, EVENTS, body, sent)
    assert end is not None
    name, _, data = end.partition(b"\ndata: ")
    error = {"message": "the agent stops", "type": "server_error", "param": None, "code": "shutting_down"}
    assert name == b"event: error"
    assert msgspec.json.decode(data) == {
        "type": "error",
        "sequence_number": 8,
        "error": error,
        "code": "shutting_down",
        "message": "the agent stops",
        "param": None,
    }
