"""The answer parser counts output, and tells the usage of the whole answer from that of a part."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.answers.answer_format import AnswerFormat
from penstock.answers.answer_parser import EVENTS, JSON, LINES, AnswerParser
from penstock.answers.held_text import MAX_HELD_BYTES
from penstock.answers.token_counts import Usage
from penstock.http.chunk_framing import SIZE_LINES
from penstock.routes.presets.preset_registry import PRESETS, preset_routes

ROUTES = {route.name: route for preset in PRESETS for route in preset_routes(preset)}
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}


def parser(route: str = "openai-chat-completions", kind: int = EVENTS, choices: int = 1) -> AnswerParser:
    made = AnswerParser(AnswerFormat(ROUTES[route]), kind, b"", False)
    made.choices = choices
    return made


def event(data: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(data).encode()


def word(index: int = 0, completion_tokens: int = -1, *, finish: str | None = None) -> bytes:
    usage = {"usage": {**USAGE, "completion_tokens": completion_tokens}} if completion_tokens >= 0 else {}
    delta = {} if finish else {"content": "a"}
    return event({"choices": [{"index": index, "delta": delta, "finish_reason": finish}], **usage})


def relayed(reader: AnswerParser, body: bytes) -> None:
    """Read a body as the relay does: a chunk with its framing, or else the body."""
    line = SIZE_LINES[len(body)]
    if not reader.skim_chunk(line + body + b"\r\n", len(line)):
        reader.feed(body)


def test_a_relayed_line_counts_once() -> None:
    reader = parser("ollama-chat", LINES)
    for text in "abcde":
        relayed(reader, json.dumps({"message": {"content": text}, "done": False}).encode() + b"\n")
    assert reader.delivered == 5


def test_an_event_that_only_has_the_role_is_no_output_although_it_states_usage() -> None:
    reader = parser()
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": {**USAGE, "completion_tokens": 0}}
    for body in (event(role), word(0, 1), word(0, 2)):
        relayed(reader, body)
    reader.finish(complete=False)
    assert (reader.delivered, reader.usage_is_final) == (2, False)


@pytest.mark.parametrize("reports", [True, False])
def test_the_first_finish_reason_of_several_answers_is_not_the_end(reports: bool) -> None:
    tokens = [1, 1, 1] if reports else [-1, -1, -1]
    reader = parser(choices=2)
    for body in (word(0, tokens[0]), word(1, tokens[1]), word(0, tokens[2], finish="stop")):
        relayed(reader, body)
    reader.finish(complete=False)
    assert (reader.finish_reason, reader.usage_is_final) == ("", False)

    reader = parser(choices=2)
    for body in (word(0, tokens[0], finish="stop"), word(1, tokens[1], finish="stop")):
        relayed(reader, body)
    relayed(reader, event({"choices": [], "usage": USAGE}))
    reader.finish(complete=False)
    assert (reader.finish_reason, reader.usage_is_final, reader.usage) == ("stop", True, Usage(12, 3))


@pytest.mark.parametrize("route", ["openai-embeddings", "ollama-embed"])
def test_the_usage_of_a_long_answer_without_generated_tokens_is_final(route: str) -> None:
    reader = parser(route, JSON)
    stated = {"prompt_eval_count": 12} if route == "ollama-embed" else {"usage": {"prompt_tokens": 12}}
    reader.feed(json.dumps({"data": ["x" * MAX_HELD_BYTES], **stated}).encode())
    reader.finish(complete=True)
    assert (reader.usage, reader.usage_is_final, reader.delivered) == (Usage(12, 0), True, 0)


@pytest.mark.parametrize("beside", [{}, {"error": None}])
def test_the_finish_reason_of_a_whole_answer_is_read_at_its_place(beside: dict[str, Any]) -> None:
    whole = {"choices": [{"finish_reason": "stop"}], "usage": USAGE, **beside}
    reader = parser(kind=JSON)
    reader.feed(json.dumps({**whole, "metadata": {"finish_reason": "abort"}}).encode())
    reader.finish(complete=True)
    assert (reader.finish_reason, reader.is_cut, reader.usage) == ("stop", False, Usage(12, 3))


@pytest.mark.parametrize(
    ("route", "stated", "usage"),
    [
        ("openai-audio-transcriptions", {"type": "tokens", "input_tokens": 12, "output_tokens": 3}, Usage(12, 3)),
        ("openai-audio-transcriptions", USAGE, Usage(12, 3)),
        ("openai-audio-transcriptions", {"type": "duration", "seconds": 3}, None),
        ("openai-images-generations", {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15}, Usage(12, 3)),
        ("vllm-rerank", {"total_tokens": 12}, Usage(12, 0)),
        ("vllm-score", {"prompt_tokens": 12, "total_tokens": 12, "completion_tokens": 0}, Usage(12, 0)),
    ],
)
def test_usage_of_audio_images_and_scores(route: str, stated: dict[str, Any], usage: Usage | None) -> None:
    reader = parser(route, JSON)
    reader.feed(json.dumps({"results": [], "usage": stated}).encode())
    reader.finish(complete=True)
    assert reader.usage == usage


@pytest.mark.parametrize("padding", [10, MAX_HELD_BYTES])
@pytest.mark.parametrize("needs_end", [True, False])
@pytest.mark.parametrize(
    ("route", "stated"),
    [
        ("sglang-generate", {"meta_info": {"finish_reason": {"type": "stop"}, "prompt_tokens": 12}}),
        ("tgi-generate", {"details": {"finish_reason": "length", "generated_tokens": 3}}),
    ],
)
def test_a_finish_reason_at_the_beginning_of_a_whole_answer_is_not_its_end(
    route: str, stated: dict[str, Any], needs_end: bool, padding: int
) -> None:
    whole = json.dumps({**stated, "text": "y" * padding})
    for missing in (1, 0):
        reader = parser(route, JSON)
        reader.needs_end = needs_end
        reader.feed(whole[: len(whole) - missing].encode())
        reader.finish(complete=needs_end)
        assert (reader.is_finished, reader.is_short) == (missing == 0, needs_end and missing == 1)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("finished", [0, 1, 2])
@pytest.mark.parametrize("done", [False, True])
def test_a_close_is_the_end_of_several_answers_once_all_have_a_finish_reason(
    finished: int, *, merged: bool, done: bool
) -> None:
    reader = parser(choices=2)
    reader.needs_end = True
    ends = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in range(finished)]
    events = [
        word(0),
        word(1),
        *([event({"choices": ends})] if merged else [event({"choices": [end]}) for end in ends]),
    ]
    for body in (*events, *([event("[DONE]").replace(b'"', b"")] if done else [])):
        relayed(reader, body)
    reader.finish(complete=True)
    assert reader.is_short == (finished < 2 and not done)
    assert reader.delivered == 2
