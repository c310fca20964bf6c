"""From an HTTP request to work: lengths, prefixes, limits, and errors in vLLM's words."""

from __future__ import annotations

import json
from random import Random
from statistics import mean, median
from typing import Any

import pytest

from lab.engine.completion_request import BadRequest, CompletionRequest, answer_length, parse_completion
from lab.engine.openai_format import words

MODEL = "llama-3.1-8b"
CONTEXT = 131_072


def parse(body: dict[str, Any] | bytes, chat: bool = True, rng: Random | None = None) -> CompletionRequest:
    raw = body if isinstance(body, bytes) else json.dumps({"model": MODEL, **body}).encode()
    return parse_completion(chat, raw, MODEL, CONTEXT, rng or Random(1))


def chat(content: Any = "hello") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def refused(body: dict[str, Any] | bytes, chat: bool = True) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(body, chat)
    return caught.value


def test_a_prompt_is_as_long_as_its_text() -> None:
    assert parse({"prompt": "x" * 4000}, chat=False).prompt_tokens == 1000
    assert parse({"prompt": [1, 2, 3]}, chat=False).prompt_tokens == 3
    assert parse({"prompt": ""}, chat=False).prompt_tokens == 1
    assert 1000 < parse(chat("x" * 4000)).prompt_tokens < 1010
    assert (
        1000
        < parse(chat([{"type": "text", "text": "x" * 4000}, {"type": "image_url", "image_url": {}}])).prompt_tokens
        < 1010
    )


def test_an_answer_with_ignore_eos_is_as_long_as_its_limit() -> None:
    limited = parse({**chat(), "max_tokens": 500, "ignore_eos": True})
    assert (limited.output_tokens, limited.stopped_by_length) == (500, True)
    newer = parse({**chat(), "max_tokens": 500, "max_completion_tokens": 50, "ignore_eos": True})
    assert newer.output_tokens == 50
    assert parse({"prompt": "hi", "ignore_eos": True}, chat=False).output_tokens == 16
    prompt = {"prompt": [1] * (CONTEXT - 7), "max_tokens": 7, "ignore_eos": True}
    assert parse(prompt, chat=False).output_tokens == 7
    assert parse({**chat(), "ignore_eos": True}).output_tokens == CONTEXT - parse(chat()).prompt_tokens


def test_an_answer_without_it_ends_at_its_limit_at_the_latest() -> None:
    answers = [parse({**chat(), "max_tokens": 100}, rng=Random(seed)) for seed in range(50)]
    assert {answer.stopped_by_length for answer in answers} == {True, False}
    assert all(answer.output_tokens == 100 for answer in answers if answer.stopped_by_length)
    assert max(answer.output_tokens for answer in answers) == 100


def test_an_answer_is_as_long_as_the_end_of_the_prompt_states_within_its_limit() -> None:
    asked = "Tell me about rivers." + answer_length(300)
    answer = parse({**chat(asked), "max_tokens": 1024})
    assert (answer.output_tokens, answer.stopped_by_length) == (300, False)
    assert parse({**chat([{"type": "text", "text": asked}]), "max_tokens": 1024}).output_tokens == 300
    assert parse({**chat(asked), "max_tokens": 100}).stopped_by_length
    assert parse({"prompt": asked + words(0, 40), "max_tokens": 1024}, chat=False).output_tokens == 260
    assert parse({**chat(asked), "max_tokens": 500, "ignore_eos": True}).output_tokens == 500
    elsewhere = [parse({**chat(asked + " And lakes?"), "max_tokens": 1024}, rng=Random(seed)) for seed in range(9)]
    assert len({answer.output_tokens for answer in elsewhere}) > 5


def test_answers_without_ignore_eos_are_as_long_as_those_of_a_real_chat_service() -> None:
    rng = Random(7)
    lengths = [parse(chat(), rng=rng).output_tokens for _ in range(4000)]
    assert 0.85 * 211 < mean(lengths) < 1.15 * 211
    assert 0.75 * 129 < median(lengths) < 1.25 * 129


def test_the_later_turns_of_a_conversation_have_its_prefix() -> None:
    first = [{"role": "user", "content": "a" * 5000}]
    later = [*first, {"role": "assistant", "content": "b" * 3000}, {"role": "user", "content": "c" * 3000}]
    other = [{"role": "user", "content": "z" + "a" * 5000}]
    begun, gone_on, unlike = (parse({"messages": messages}).spans for messages in (first, later, other))
    assert len(begun) == 2
    assert len(gone_on) == 5
    assert gone_on[:2] == begun
    assert not set(unlike) & set(gone_on)


def test_streaming_and_usage_are_requested() -> None:
    plain = parse(chat())
    assert (plain.stream, plain.include_usage) == (False, False)
    streamed = parse({**chat(), "stream": True, "stream_options": {"include_usage": True}})
    assert (streamed.stream, streamed.include_usage) == (True, True)


def test_an_unknown_model_is_404() -> None:
    error = refused({**chat(), "model": "gpt-4"})
    assert (error.status, error.error_type, error.param) == (404, "NotFoundError", "model")
    assert str(error) == "The model `gpt-4` does not exist."


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "\xff"}]}',
        b"[" * 100_000,
        b'{"model": "llama-3.1-8b", "messages": ' + b"[" * 100_000,
        b'{"model": "llama-3.1-8b", "x": ' + b"[" * 100_000,
        {},
        {"messages": []},
        {"messages": "hello"},
        {"messages": [{"content": "hello"}]},
        {**chat(), "max_tokens": 0},
        {**chat(), "max_tokens": "many"},
        {**chat(), "n": 2},
        {**chat(), "stream": "yes"},
    ],
)
def test_an_invalid_chat_request_is_400(body: dict[str, Any] | bytes) -> None:
    error = refused(body)
    assert (error.status, error.error_type) == (400, "BadRequestError")


def test_a_prompt_that_is_too_long_is_400_with_vllms_message() -> None:
    body = {"prompt": [1] * 131_000, "max_tokens": 200}
    error = refused(body, chat=False)
    assert error.status == 400
    assert str(error) == (
        "This model's maximum context length is 131072 tokens. However, you requested 131200 tokens (131000 in the "
        "messages, 200 in the completion). Please reduce the length of the messages or completion."
    )
    assert refused(chat("x" * 4 * CONTEXT)).status == 400


def test_an_answer_extends_the_final_message() -> None:
    continued = chat() | {"continue_final_message": True, "add_generation_prompt": False, "max_tokens": 5}
    continued["messages"].append({"role": "assistant", "content": " water flows down"})
    answer = parse(continued)
    assert (answer.first_word, answer.prompt_tokens) == (3, parse(chat()).prompt_tokens + 3)
    assert answer.spans == parse(chat()).spans


def test_an_answer_extends_a_prompt_that_ends_with_generated_words() -> None:
    prompt = "Why is the sky blue?"
    for count in (0, 1, 4, 26, 27, 28, 80):
        answer = parse({"prompt": prompt + words(0, count)}, chat=False)
        assert (answer.first_word, answer.prompt_tokens) == (count, 5 + count)


def test_a_final_message_is_extended_only_as_vllm_does() -> None:
    assert refused(chat() | {"continue_final_message": True}).status == 400
    assert refused(chat() | {"continue_final_message": True, "add_generation_prompt": False}).status == 400
