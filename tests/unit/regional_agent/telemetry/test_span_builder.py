from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from regional_agent.telemetry.tracing.request_trace import MAX_MARKS, RequestTrace, SpanEvent
from regional_agent.telemetry.tracing.span_builder import MAX_TEXT, EndedRequest, Span, attributes_of, spans_of

numbers = count(1)


def new_id() -> str:
    return f"{next(numbers):016x}"


def trace() -> RequestTrace:
    return RequestTrace("1" * 32, "", True, 1.0, new_id)


def ended(**changed: Any) -> EndedRequest:
    fields: dict[str, Any] = {
        "method": "POST",
        "path": "/v1/embeddings",
        "route": "/v1/embeddings",
        "status": 200,
        "failed": False,
        "reason": "",
        "received_at": 0.0,
        "ended_at": 9.0,
        "first_byte_at": None,
        "streaming": False,
        "model": "m",
        "asked_for": "alias",
        "usage": None,
        "own": {},
    }
    return EndedRequest(**fields | changed)


def seconds(span: Span) -> tuple[float, float]:
    return int(span.start_time_unix_nano) / 1e9, int(span.end_time_unix_nano) / 1e9


def test_phases_and_attempts_follow_each_other() -> None:
    request_trace = trace()
    request_trace.note(SpanEvent.SELECTION, 1.0)
    request_trace.note(SpanEvent.QUEUE, 2.0)
    first = request_trace.attempt_id
    request_trace.attempt("eu-de", "gpu-0", "home", "a", 1, 4.0)
    request_trace.note(SpanEvent.SENT, 4.0)
    request_trace.attempt_failed("engine_busy", 5.0)
    request_trace.note(SpanEvent.SELECTION, 5.0)
    request_trace.attempt("eu-es", "", "planned", "b", 2, 6.0)
    spans = spans_of(request_trace, ended(), 100.0, new_id)
    assert [(span.name, *seconds(span)) for span in spans] == [
        ("POST /v1/embeddings", 100.0, 109.0),
        ("authorization", 100.0, 101.0),
        ("selection", 101.0, 102.0),
        ("queue", 102.0, 104.0),
        ("embeddings m", 104.0, 105.0),
        ("selection", 105.0, 106.0),
        ("embeddings m", 106.0, 109.0),
    ]
    assert (spans[4].span_id, spans[6].span_id) == (first, request_trace.attempt_id)
    assert first != request_trace.attempt_id
    assert [bool(span.status) for span in spans] == [False] * 4 + [True] + [False] * 2


def test_a_stream_that_never_began_has_a_prefill_only() -> None:
    request_trace = trace()
    request_trace.attempt("eu-de", "gpu-0", "home", "a", 1, 1.0)
    request_trace.note(SpanEvent.SENT, 2.0)
    spans = spans_of(
        request_trace, ended(streaming=True, failed=True, reason="engine_timeout", status=504), 0.0, new_id
    )
    assert [span.name for span in spans[2:]] == ["embeddings m", "prefill"]
    assert seconds(spans[3]) == (2.0, 9.0)
    assert {"key": "error.type", "value": {"stringValue": "engine_timeout"}} in spans[2].attributes


def test_marks_of_one_request_are_limited() -> None:
    request_trace = trace()
    for _ in range(MAX_MARKS + 5):
        request_trace.note(SpanEvent.SELECTION, 1.0)
    assert len(request_trace.marks) == MAX_MARKS


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (True, {"boolValue": True}),
        (0, {"intValue": "0"}),
        (0.5, {"doubleValue": 0.5}),
        (("a",), {"arrayValue": {"values": [{"stringValue": "a"}]}}),
        ("x" * (MAX_TEXT + 1), {"stringValue": "x" * MAX_TEXT}),
    ],
)
def test_attributes_are_encoded_by_type(value: Any, encoded: dict[str, Any]) -> None:
    assert attributes_of({"k": value, "empty": "", "none": None}) == [{"key": "k", "value": encoded}]
