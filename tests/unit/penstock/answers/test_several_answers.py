"""The usage of a stream with the answers to several prompts."""

from __future__ import annotations

import json

import pytest

from penstock.answers.answer_format import AnswerFormat
from penstock.answers.answer_parser import EVENTS, AnswerParser
from penstock.answers.answer_usage import MAX_ANSWERS
from penstock.answers.event_splitter import MAX_EVENT_BYTES
from penstock.answers.token_counts import Usage
from penstock.routes.presets.preset_registry import preset_routes

SGLANG = AnswerFormat(next(route for route in preset_routes("sglang") if route.name == "sglang-generate"))


def of_prompt(index: int, tokens: int, finish: str | None = None, *, size: int = 1) -> bytes:
    meta = {"prompt_tokens": 7 + index, "completion_tokens": tokens, "cached_tokens": 2, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"text": "x" * size, "meta_info": meta, "index": index}).encode()


@pytest.mark.parametrize("size", [9, 1000])
def test_the_usage_of_a_stream_of_several_prompts_is_that_of_all(size: int) -> None:
    begun = (of_prompt(0, 1), of_prompt(1, 1), of_prompt(0, 2, "stop"), of_prompt(1, 2))
    reader = AnswerParser(SGLANG, EVENTS, b"", False)
    for at in range(0, len(b"".join(begun)), size):
        reader.feed(b"".join(begun)[at : at + size])
    assert (reader.usage, reader.usage_is_final, reader.finish_reason) == (Usage(15, 4, 4), False, "")
    reader.feed(of_prompt(2, 5, "stop", size=MAX_EVENT_BYTES) + of_prompt(1, 3, "length") + b"data: [DONE]\n\n")
    reader.finish(complete=True)
    assert (reader.usage, reader.usage_is_final, reader.finish_reason) == (Usage(24, 10, 6), True, "length")
    assert (reader.delivered, reader.ended) == (6, True)


def test_the_usage_of_too_many_prompts_is_not_read() -> None:
    reader = AnswerParser(SGLANG, EVENTS, b"", False)
    reader.feed(b"".join(of_prompt(index, 1, "stop") for index in range(MAX_ANSWERS + 1)))
    reader.finish(complete=True)
    assert (reader.usage, reader.usage_is_final) == (None, False)
