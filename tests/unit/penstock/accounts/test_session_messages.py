"""What the engine's messages of a WebSocket session report: usage of each response, uncounted output, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.accounts.session_messages import SessionMessages
from penstock.answers.answer_errors import ErrorCause
from penstock.answers.answer_format import AnswerFormat
from penstock.answers.token_counts import Usage
from penstock.routes.presets.preset_registry import preset_routes

REALTIME = AnswerFormat(next(route for route in preset_routes("openai") if route.name == "openai-realtime"))

OPENAI = {
    "type": "response.done",
    "response": {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "audio", "transcript": 'say "usage": 7'}]}],
        "usage": {
            "total_tokens": 30,
            "input_tokens": 10,
            "output_tokens": 20,
            "input_token_details": {"text_tokens": 4, "audio_tokens": 6, "cached_tokens": 3},
            "output_token_details": {"text_tokens": 5, "audio_tokens": 15},
        },
    },
}
VLLM = {
    "type": "transcription.done",
    "text": "hello",
    "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
}


def read(*messages: Any) -> SessionMessages:
    session = SessionMessages(REALTIME)
    for message in messages:
        session.read(message if isinstance(message, bytes) else json.dumps(message).encode())
    return session


def delta(kind: str, text: str = "a") -> dict[str, Any]:
    return {"event_id": "e", "type": kind, "delta": text}


def test_the_reports_of_a_session_are_added_up() -> None:
    session = read({"type": "session.created"}, OPENAI, delta("response.output_text.delta"), OPENAI, VLLM)
    assert (session.usage, session.is_estimated) == (Usage(29, 44, 6), False)


@pytest.mark.parametrize(
    ("kind", "counted"),
    [
        ("response.output_text.delta", 1),
        ("response.text.delta", 1),
        ("response.output_audio_transcript.delta", 1),
        ("response.function_call_arguments.delta", 1),
        ("transcription.delta", 1),
        ("response.output_audio.delta", 0),
        ("response.audio.delta", 0),
        ("conversation.item.input_audio_transcription.delta", 0),
        ("response.done", 0),
    ],
)
def test_output_without_a_report_is_counted_and_marked(kind: str, counted: int) -> None:
    session = read(delta(kind), delta("response.output_text.delta", '"type": "response.text.delta"'))
    assert (session.usage, session.is_estimated) == (Usage(0, counted + 1, prompt_is_known=False), True)
    assert read(OPENAI, delta(kind)).usage == Usage(10, 20 + counted, 3)
    assert read(OPENAI, delta(kind)).is_estimated is bool(counted)


def test_a_number_that_one_report_lacks_in_a_usable_form_is_not_known() -> None:
    session = read(OPENAI, {"type": "response.done", "response": {"usage": {"input_tokens": 7, "output_tokens": -1}}})
    assert (session.usage, session.is_estimated) == (Usage(17, 0, 3, answer_is_known=False), True)
    session = read(OPENAI, {"type": "response.done", "response": {"usage": {"input_tokens": "7", "output_tokens": 5}}})
    assert (session.usage, session.is_estimated) == (Usage(0, 25, 0, prompt_is_known=False), False)


def test_a_session_without_output_reports_nothing() -> None:
    assert read({"type": "session.created"}, delta("response.audio.delta")).usage is None


@pytest.mark.parametrize(
    "usage",
    [None, [], 7, "9", {"input_tokens": "7"}, {"output_tokens": -1}, {"input_tokens": 1e30}, {"output_tokens": 1.5}],
)
def test_unusable_reports_add_nothing(usage: Any) -> None:
    session = read({"type": "response.done", "response": {"usage": usage}})
    assert session.usage is None


@pytest.mark.parametrize(
    "message",
    [
        {"type": "session.updated", "session": {"tools": [{"parameters": {"usage": {"input_tokens": 7}}}]}},
        {"type": "conversation.item.created", "item": {"usage": {"input_tokens": 7}}},
        b'not JSON: "usage": {"input_tokens": 7}',
        b'[{"usage": {"input_tokens": 7}}]',
        b'{"usage": {"input_tokens": 7',
        b'"usage"' * 99,
        b'\xff\xfe"usage"',
    ],
)
def test_usage_is_read_at_its_place_alone(message: Any) -> None:
    assert read(message).usage is None


def test_the_error_of_the_last_message_is_kept() -> None:
    failure = {"type": "error", "error": {"type": "server_error", "message": "out of memory"}}
    invalid = {"type": "error", "error": {"type": "invalid_request_error", "code": "x", "message": "no"}}
    failed, refused = read(VLLM, failure).error, read(failure, invalid).error
    assert failed is not None
    assert refused is not None
    assert (failed.cause, failed.message, refused.cause) == (ErrorCause.ENGINE, "out of memory", ErrorCause.REQUEST)
    assert read(failure, delta("response.output_text.delta")).error is None
