"""The facts of the answer parser do not depend on the chunking, and equal those of a full parse."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.answers.answer_format import AnswerFormat
from penstock.answers.answer_parser import EVENTS, JSON, LINES, AnswerParser
from penstock.answers.json_reducer import JsonReducer, wanted_members
from penstock.answers.token_counts import Usage
from penstock.routes.presets.openai import OPENAI_ROUTES

CHAT = AnswerFormat(next(route for route in OPENAI_ROUTES if route.name == "openai-chat-completions"))
TREE = wanted_members(["/usage", "/error", "/response/usage", "/id"])

KEYS = st.sampled_from(["usage", "error", "id", "response", "choices", "prompt_tokens", "x", 'a"b', "\\", "é", ""])
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PIECES = (b'"usage":', b"{", b"}", b"[", b"]", b'"', b"\\", b"9", b",", b":", b"\n", b"data: ", b"\xff")
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
NUMBERS = st.integers(0, 1000)
USAGES = st.fixed_dictionaries(
    {
        "prompt_tokens": NUMBERS,
        "completion_tokens": NUMBERS,
        "prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": NUMBERS}),
    },
    optional={"x": VALUES},
)
ANSWERS = st.dictionaries(st.sampled_from(["x", "response", "metadata", "logprobs"]), VALUES, max_size=3).flatmap(
    lambda rest: st.fixed_dictionaries(
        {}, optional={"usage": USAGES, "choices": st.just([]), **{key: st.just(value) for key, value in rest.items()}}
    )
)
CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    parts, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        parts.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return parts


def reported(answers: list[dict[str, Any]]) -> Usage | None:
    usage = None
    for answer in answers:
        if "usage" in answer:
            stated = answer["usage"]
            prompt, cached = stated["prompt_tokens"], stated["prompt_tokens_details"]["cached_tokens"]
            usage = Usage(prompt, stated["completion_tokens"], min(cached, prompt))
    return usage


@given(st.lists(ANSWERS, min_size=1, max_size=4), CUTS, st.sampled_from(["\n\n", "\r\n\r\n"]), st.booleans())
def test_a_stream_in_any_chunking(answers: list[dict[str, Any]], sizes: list[int], end: str, hides: bool) -> None:
    events = [f"data: {json.dumps(answer)}{end}".encode() for answer in answers]
    data = b"".join(events) + f"data: [DONE]{end}".encode()
    parser = AnswerParser(CHAT, EVENTS, b"", hides)
    forwarded = b"".join(parser.feed(part) for part in cut(data, sizes)) + parser.finish(complete=True)
    kept = [
        event
        for event, answer in zip(events, answers, strict=True)
        if not (hides and "usage" in answer and answer.get("choices") == [])
    ]
    assert forwarded == b"".join(kept) + f"data: [DONE]{end}".encode()
    assert parser.usage == reported(answers)
    assert parser.ended


TEXTS = st.sampled_from(
    [" river", "usage", "error", ":", "[DONE]", "", '"', "\\", "\n", "\r", "é", '":"', ',"usage":{"x":1}']
)
TAILS = st.sampled_from(
    [{}, {"usage": None}, {"usage": {"prompt_tokens": 3}}, {"error": {"code": 500}}, {"note": "a"}, {"note": ""}]
)


@given(st.lists(st.tuples(TEXTS, TAILS), max_size=8), st.sampled_from([(",", ":"), (", ", ": ")]), st.booleans())
def test_chunks_that_are_relayed_are_read_like_others(
    events: list[tuple[str, dict[str, Any]]], separators: tuple[str, str], crlf: bool
) -> None:
    relayed, fed = (AnswerParser(CHAT, EVENTS, b"", False) for _ in range(2))
    for text, tail in [("first", {}), *events]:
        answer = {"choices": [{"delta": {"content": text}, "finish_reason": None}], **tail}
        end = "\r\n\r\n" if crlf else "\n\n"
        body = f"data: {json.dumps(answer, separators=separators, ensure_ascii=False)}{end}".encode()
        size_line = b"%x\r\n" % len(body)
        if not relayed.skim_chunk(size_line + body + b"\r\n", len(size_line)):
            assert relayed.feed(body) == body
        fed.feed(body)
    for parser in (relayed, fed):
        parser.finish(complete=True)
    assert relayed.usage == fed.usage
    assert relayed.error == fed.error
    assert (relayed.delivered, relayed.ended) == (fed.delivered, fed.ended)


@given(ANSWERS, CUTS, st.sampled_from([None, 1]))
def test_an_answer_in_any_chunking(answer: dict[str, Any], sizes: list[int], indent: int | None) -> None:
    data = json.dumps(answer, indent=indent, ensure_ascii=False).encode()
    for kind in (JSON, *([] if indent else [LINES])):
        parser = AnswerParser(CHAT, kind, b"", False)
        parts = cut(data + (b"\n" if kind == LINES else b""), sizes)
        assert b"".join(parser.feed(part) for part in parts) + parser.finish(complete=True) == b"".join(parts)
        assert parser.usage == reported([answer])


def reduced(value: Any, wanted: Any) -> Any:
    if isinstance(value, list):
        return [reduced(element, wanted) for element in value if isinstance(element, dict | list)]
    return {
        key: value[key] if wanted[key] is None else reduced(value[key], wanted[key])
        for key in value
        if key in wanted and (wanted[key] is None or isinstance(value[key], dict | list))
    }


@given(st.dictionaries(KEYS, VALUES, max_size=5) | st.lists(VALUES, max_size=4), CUTS, st.booleans())
def test_a_reduced_text_is_the_wanted_part_of_the_full_one(value: Any, sizes: list[int], ascii_only: bool) -> None:
    reducer = JsonReducer(TREE, {"usage", "choices", "é"})
    for part in cut(json.dumps(value, ensure_ascii=ascii_only).encode(), sizes):
        reducer.feed(part)
    assert reducer.complete
    assert json.loads(reducer.result()) == reduced(value, TREE)
    objects = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else [value]
    expected = [each.get(key) for each in objects for key in ("usage", "choices", "é")]
    assert reducer.has_expected == (expected != [None] * len(expected))
    assert (reducer.is_array, reducer.is_object) == (isinstance(value, list), isinstance(value, dict))


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES)), CUTS)
def test_any_bytes_are_forwarded_and_read_within_bounds(pieces: list[bytes], sizes: list[int]) -> None:
    data = b"".join(pieces)
    for kind in (JSON, EVENTS, LINES):
        parser = AnswerParser(CHAT, kind, b"", False)
        assert b"".join(parser.feed(part) for part in cut(data, sizes)) == data
        parser.finish(complete=True)
        usage = parser.usage
        assert usage is None or 0 <= usage.cached_tokens <= usage.prompt_tokens
