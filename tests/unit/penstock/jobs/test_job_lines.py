"""Lines of batches: the check of a request, the lines of message batches, and the progress of a response."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.jobs.batches.message_batch import (
    MAX_REQUESTS,
    MessageRequest,
    decode_requests,
    input_line,
    message_error_line,
    message_result_line,
    problem_text,
)
from penstock.jobs.batches.request_line import (
    MAX_CUSTOM_ID,
    LineChecks,
    LineProblem,
    RequestLine,
    check_line,
    decode_line,
)
from penstock.jobs.response_progress import (
    PROGRESS_HEADER,
    ResponseProgress,
    interim_head,
)

MAX_EVENT_BYTES = 65_536
"""As documented, and not imported: a test fails if a tuned constant changes."""

CHECKS = LineChecks(
    url=lambda url: "" if url == "/v1/embeddings" else "no route",
    model=lambda model: "" if model == "m" else "no model",
)
GOOD: dict[str, Any] = {"custom_id": "a", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}


def test_a_request_that_can_run_is_returned() -> None:
    text = msgspec.json.encode(GOOD)
    for line in (check_line(3, text, CHECKS), decode_line(text)):
        assert isinstance(line, RequestLine)
        assert (line.custom_id, line.url, line.method) == ("a", "/v1/embeddings", "POST")
        assert msgspec.json.decode(line.body) == GOOD["body"]
    assert isinstance(check_line(3, msgspec.json.encode(GOOD | {"custom_id": "a" * 512}), CHECKS), RequestLine)


@pytest.mark.parametrize(
    ("changed", "code", "message", "param"),
    [
        ({"custom_id": ""}, "invalid_custom_id", "`custom_id` has not 1 to 512 characters", "custom_id"),
        ({"custom_id": "a" * 513}, "invalid_custom_id", f"`custom_id` has not 1 to {MAX_CUSTOM_ID} characters",
         "custom_id"),
        ({"method": "GET"}, "invalid_method", "`method` is not POST", "method"),
        ({"url": "/v1/other"}, "invalid_url", "no route", "url"),
        ({"body": [1]}, "invalid_body", "`body` is not a JSON object", "body"),
        ({"body": {}}, "missing_model", "`body` has no `model`", "body.model"),
        ({"body": {"model": "m", "stream": True}}, "invalid_body",
         "`stream` is not possible in a batch; remove it", "body.stream"),
        ({"body": {"model": "n"}}, "model_not_found", "no model", "body.model"),
        ({"custom_id": 1}, "invalid_request", "Expected `str`, got `int` - at `$.custom_id`", None),
    ],
)  # fmt: skip
def test_the_first_problem_of_a_line(changed: dict[str, Any], code: str, message: str, param: str | None) -> None:
    problem = check_line(3, msgspec.json.encode(GOOD | changed), CHECKS)
    assert problem == LineProblem(code, f"line 3: {message}", 3, param)


@pytest.mark.parametrize("text", [b"{", b'{"custom_id": "\xff"}', b'{"a":' + b"[" * 5000])
def test_a_line_that_is_not_json(text: bytes) -> None:
    problem = check_line(3, text, CHECKS)
    assert isinstance(problem, LineProblem)
    assert (problem.code, problem.line) == ("invalid_json_line", 3)
    assert problem.message.startswith("line 3 is not valid JSON: ")


def test_a_request_of_a_message_batch_is_a_line_of_an_input_file() -> None:
    line = input_line(MessageRequest("a", msgspec.Raw(b'{\n "model":\r "m"}')))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    expected = {"custom_id": "a", "url": "/v1/messages", "body": {"model": "m"}, "method": "POST"}
    assert json.loads(line) == expected


def test_a_message_batch_is_decoded_up_to_the_first_request_too_many() -> None:
    body = b'{"requests": [%b]}'
    one = b'{"custom_id": "a", "params": {"x": [1]}}'
    found = decode_requests(body % b",".join([one] * 3), 3)
    assert [(each.custom_id, bytes(each.params)) for each in found] == [("a", b'{"x": [1]}')] * 3
    # What follows is not read.
    with pytest.raises(msgspec.DecodeError, match="more than 3 requests"):
        decode_requests(body % (b",".join([one] * 4) + b"\x00"), 3)
    assert MAX_REQUESTS == 100_000


def test_problems_of_a_message_batch_name_the_request_by_its_index() -> None:
    missing = LineProblem("missing_model", "line 3: `body` has no `model`", 3, "body.model")
    assert problem_text(missing) == "requests.2: `params` has no `model`"
    repeated = LineProblem("duplicate", "line 3: the custom_id is that of line 1", 3)
    assert problem_text(repeated) == "requests.2: the custom_id is that of requests.0"
    assert problem_text(LineProblem("no_file", "the file was deleted")) == "the file was deleted"


def api_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "errored", "error": {"type": "error", "error": {"type": kind, "message": message}}}


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        (200, b'{"x":\r\n1}', {"type": "succeeded", "message": {"x": 1}}),
        (400, b'{"type": "error", "error": {"type": "t", "message": "m"}}', api_error("t", "m")),
        (400, b'{"detail":"bad"}', api_error("invalid_request_error", 'status 400: {"detail":"bad"}')),
        (499, b"1" * 501, api_error("invalid_request_error", f"status 499: {'1' * 500}")),
        (500, b"{}", api_error("api_error", "status 500: {}")),
    ],
)
def test_the_result_of_a_message(status: int, body: bytes, result: dict[str, Any]) -> None:
    line = message_result_line("r", "a", status, body)
    assert (line.count(b"\n"), line.count(b"\r")) == (1, 0)
    assert line.endswith(b"\n")
    assert json.loads(line) == {"custom_id": "a", "result": result}


def test_messages_that_did_not_run() -> None:
    for code, kind in (("batch_cancelled", "canceled"), ("batch_expired", "expired")):
        assert json.loads(message_error_line("r", "a", code, "x")) == {"custom_id": "a", "result": {"type": kind}}
    other = json.loads(message_error_line("r", "a", "lost", "text"))
    assert other == {"custom_id": "a", "result": api_error("api_error", "lost: text (r)")}


def test_the_progress_of_a_response_is_the_last_number_in_its_events() -> None:
    progress = ResponseProgress()
    assert (progress.received_bytes, progress.reported) == (0, None)
    headers = {b"content-type": b"Text/event-stream; charset=utf-8"}
    progress.add(headers, b'data: {"progress": 0.25}\n\ndata: {"prog')
    assert (progress.received_bytes, progress.reported) == (38, 0.25)
    progress.add(headers, b'ress": 1}\n{"progress": true}\n{"progress": "x"}\nnone\n')
    assert (progress.received_bytes, progress.reported) == (38 + 52, 1.0)
    # Another attempt begins anew, and this one has no events.
    progress.add({b"content-type": b"application/json"}, b'{"progress": 0.5}\n')
    assert (progress.received_bytes, progress.reported) == (18, None)
    progress.add({}, b'{"progress": 0.5}\n')
    assert (progress.received_bytes, progress.reported) == (18, None)


def test_an_event_that_is_too_long_ends_the_reading_of_events_only() -> None:
    progress = ResponseProgress()
    headers = {b"content-type": b"application/x-ndjson"}
    progress.add(headers, b'{"progress": 0.5}\n')
    progress.add(headers, b"x" * (MAX_EVENT_BYTES + 1))
    progress.add(headers, b'\n{"progress": 0.75}\n')
    assert (progress.received_bytes, progress.reported) == (MAX_EVENT_BYTES + 1 + 18 + 20, 0.5)


def test_the_progress_of_interim_responses_lasts_until_the_response_that_follows_them() -> None:
    progress = ResponseProgress()
    for value, shown in ((0.0, 0.0), (0.5, 0.5), (0.25, 0.25), (1.0, 1.0)):
        head = interim_head(value)
        assert head.startswith(b"HTTP/1.1 102 ")
        progress.add({PROGRESS_HEADER: head.rpartition(b": ")[2].strip()}, b"")
        assert progress.reported == shown
    for invalid in (b"", b"2", b"nan", b"0.5", b"0.123", b"-0.10"):
        progress.add({PROGRESS_HEADER: invalid}, b"")
        assert progress.reported == 1.0
    progress.add({b"content-type": b"application/json"}, b"{}")
    assert (progress.reported, progress.received_bytes) == (1.0, 2)
    # The response of another attempt.
    progress.add({b"content-type": b"application/json"}, b"{}")
    assert progress.reported is None
