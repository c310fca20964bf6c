"""A number of tokens that is no count is not known, in each field of each format; the other numbers stay exact."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.answers.answer_format import AnswerFormat
from penstock.answers.answer_parser import EVENTS, JSON, LINES, AnswerParser
from penstock.answers.held_text import MAX_HELD_BYTES
from penstock.answers.token_counts import Usage
from penstock.routes.json_pointer import parse_pointer
from penstock.routes.presets.preset_registry import PRESETS, preset_routes
from penstock.routes.route import Route, StreamKind

ROUTES = {
    route.name: route
    for preset in PRESETS
    for route in preset_routes(preset)
    if route.offered and route.cost.uses_tokens and route.stream is not StreamKind.WEBSOCKET
}
UNUSABLE = (5.9, "7", -5, 1e30, 10**30, True, [7], {"a": 7}, "")
NUMBER = 7
CHAT = ROUTES["openai-chat-completions"]


def put(fields: dict[str, Any], pointer: str, value: Any) -> None:
    *path, last = parse_pointer(pointer)
    for token in path:
        fields = fields.setdefault(token, {})
    fields[last] = value


def stated(route: Route, instead: str, value: Any) -> dict[str, Any]:
    """An answer in which each number of the format is NUMBER, except that at the pointer `instead`."""
    usage, answer = route.usage, {}
    for pointer in (*usage.prompt_tokens, *usage.answer_tokens, *usage.cached_tokens):
        put(answer, usage.objects[0] + pointer, value if pointer == instead else NUMBER)
    return {**{member: [1] for member in AnswerFormat(route).members}, **answer}


def read(route: Route, kind: int, *texts: bytes) -> AnswerParser:
    reader = AnswerParser(AnswerFormat(route), kind, b"", False)
    for text in texts:
        reader.feed({EVENTS: b"data: %b\n\n", LINES: b"%b\n", JSON: b"%b"}[kind] % text)
    reader.finish(complete=True)
    return reader


def kinds(route: Route) -> tuple[int, ...]:
    return {StreamKind.SSE: (JSON, EVENTS), StreamKind.NDJSON: (JSON, LINES)}.get(route.stream, (JSON,))


@pytest.mark.parametrize(("value", "beside"), [*((value, 1) for value in UNUSABLE), (5.9, MAX_HELD_BYTES)])
@pytest.mark.parametrize("name", ROUTES)
def test_a_number_that_is_no_count_is_not_known(name: str, value: Any, beside: int) -> None:
    route = ROUTES[name]
    fields = route.usage
    for pointer in dict.fromkeys((*fields.prompt_tokens, *fields.answer_tokens, *fields.cached_tokens)):
        text = json.dumps({"x": "y" * beside, **stated(route, pointer, value)}).encode()
        is_answer = pointer in fields.answer_tokens
        prompt = 0 if pointer in fields.prompt_tokens else NUMBER * len(fields.prompt_tokens)
        answer = 0 if is_answer else NUMBER * len(fields.answer_tokens)
        cached = 0 if pointer in fields.cached_tokens else min(NUMBER * len(fields.cached_tokens), prompt)
        usage = Usage(prompt, answer, cached, is_answer, not is_answer) if prompt or fields.answer_tokens else None
        for kind in kinds(route):
            reader = read(route, kind, text)
            assert reader.usage == usage, (pointer, kind)
            assert not (is_answer and reader.usage_is_final)


@pytest.mark.parametrize("value", UNUSABLE, ids=repr)
def test_the_last_report_decides_whether_a_number_is_known(value: Any) -> None:
    good, bad = (json.dumps(stated(CHAT, "/completion_tokens", each)).encode() for each in (NUMBER, value))
    usage = read(CHAT, EVENTS, good, bad).usage
    assert usage == Usage(NUMBER, 0, NUMBER, True, False)
    assert read(CHAT, EVENTS, good, bad, good).usage == Usage(NUMBER, NUMBER, NUMBER)
    only_prompt = b'{"choices": [], "usage": {"prompt_tokens": 9}}'
    assert read(CHAT, EVENTS, good, bad, only_prompt).usage == Usage(9, 0, NUMBER, True, False)


@pytest.mark.parametrize("usage", [b"NaN", b'{"prompt_tokens": 9, "completion_tokens": NaN}', b"{Infinity}"])
def test_usage_that_is_no_json_is_none(usage: bytes) -> None:
    assert read(CHAT, JSON, b'{"choices": [1], "usage": %b}' % usage).usage is None
    assert read(CHAT, EVENTS, b'{"choices": [1], "usage": %b}' % usage).usage is None


def test_a_report_without_the_output_of_a_chat_is_incomplete() -> None:
    text = b'{"choices": [1], "data": [1], "usage": {"prompt_tokens": 9}}'
    reader = read(CHAT, JSON, text)
    assert (reader.usage, reader.usage_is_final) == (Usage(9, 0, 0, True, False), False)
    reader = read(ROUTES["openai-embeddings"], JSON, text)
    assert (reader.usage, reader.usage_is_final) == (Usage(9, 0), True)


def test_an_unusable_number_of_one_of_several_prompts_makes_the_sum_unknown() -> None:
    route = ROUTES["sglang-generate"]
    answers = [{"meta_info": {"prompt_tokens": 3, "completion_tokens": number}} for number in (2, 5.9, 4)]
    assert read(route, JSON, json.dumps(answers).encode()).usage == Usage(9, 0, 0, True, False)
    events = [json.dumps({**answer, "index": index}).encode() for index, answer in enumerate(answers)]
    assert read(route, EVENTS, *events).usage == Usage(9, 0, 0, True, False)
