"""Which requests can be continued, and the bodies of their continuations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.continuation.continuable_request import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    ContinuableRequest,
    continuable_request,
    continuation_body,
)

CHAT: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"model": "m", "stream": True, "prompt": "Once upon"}


def encode(fields: dict[str, Any], **more: Any) -> bytes:
    return json.dumps(fields | more).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"best_of": 2},
        {"stream": False},
        {"stream": None},
        {"functions": [{}]},
        {"logprobs": True},
        {"top_logprobs": 3},
        {"response_format": {"type": "json_object"}},
        {"guided_regex": "a+"},
        {"structured_outputs": {"choice": ["a"]}},
        {"continue_final_message": True},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "He"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"messages": "Hi"},
        {"max_tokens": "9"},
    ],
)
def test_a_chat_that_cannot_be_continued(fields: dict[str, Any]) -> None:
    assert isinstance(continuable_request(CHAT_PATH, encode(CHAT, **fields)), str)


@pytest.mark.parametrize("fields", [{"logprobs": 0}, {"echo": True}, {"suffix": "end"}, {"prompt": [1, 2]}])
def test_a_completion_that_cannot_be_continued(fields: dict[str, Any]) -> None:
    assert isinstance(continuable_request(COMPLETIONS_PATH, encode(COMPLETION, **fields)), str)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_request(body: bytes) -> None:
    assert isinstance(continuable_request(CHAT_PATH, body), str)


def test_another_path_cannot_be_continued() -> None:
    assert isinstance(continuable_request(b"/v1/responses", encode(CHAT)), str)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "tools": [], "tool_choice": "auto", "logprobs": False, "response_format": {"type": "text"}},
        {"n": None, "tools": None, "response_format": None, "stop": ["."], "seed": 1, "temperature": 0.7},
        {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be brief"}]}, *CHAT["messages"]]},
    ],
)
def test_a_chat_that_can_be_continued(fields: dict[str, Any]) -> None:
    assert continuable_request(CHAT_PATH, encode(CHAT, **fields)) == ContinuableRequest(True, None, False)


@pytest.mark.parametrize(
    ("choice", "must_call"),
    [("auto", False), ("none", False), ("required", True), ({"type": "function", "function": {"name": "f"}}, True)],
)
def test_a_chat_with_tools_can_be_continued(choice: Any, *, must_call: bool) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]}
    messages = [*CHAT["messages"], called, {"role": "tool", "tool_call_id": "c", "content": "7 degrees"}]
    body = encode(CHAT, messages=messages, tools=[{"type": "function"}], tool_choice=choice)
    assert continuable_request(CHAT_PATH, body) == ContinuableRequest(True, None, False, must_call=must_call)


def test_limits_and_usage_are_read() -> None:
    body = encode(CHAT, max_tokens=9, max_completion_tokens=7, stream_options={"include_usage": True})
    assert continuable_request(CHAT_PATH, body) == ContinuableRequest(True, 7, True)
    assert continuable_request(COMPLETIONS_PATH, encode(COMPLETION)) == ContinuableRequest(False, 16, False)


@pytest.mark.parametrize(
    ("path", "limits", "limit"),
    [
        (CHAT_PATH, {"max_tokens": 7, "max_completion_tokens": 9}, 9),
        (CHAT_PATH, {"max_tokens": 7, "max_completion_tokens": None}, 7),
        (COMPLETIONS_PATH, {"max_tokens": 9, "max_completion_tokens": 7}, 9),
        (COMPLETIONS_PATH, {"max_completion_tokens": 7}, 16),
        (COMPLETIONS_PATH, {"max_tokens": None}, None),
    ],
)
def test_the_limit_is_the_one_that_engines_apply(path: bytes, limits: dict[str, int | None], limit: int | None) -> None:
    body = encode(CHAT if path == CHAT_PATH else COMPLETION, **limits)
    request = continuable_request(path, body)
    assert isinstance(request, ContinuableRequest)
    assert request.max_tokens == limit
    continued = json.loads(continuation_body(request, body, "text", 2))
    applied = limits.get("max_completion_tokens") if path == CHAT_PATH else None
    applied_field = "max_completion_tokens" if applied else "max_tokens"
    assert continued[applied_field] == (None if limit is None else limit - 2)


def test_a_chat_is_continued_from_the_text_of_the_assistant() -> None:
    body = encode(CHAT, max_tokens=9, min_tokens=3, stream_options={"include_usage": True}, seed=1)
    request = continuable_request(CHAT_PATH, body)
    assert isinstance(request, ContinuableRequest)
    assert json.loads(continuation_body(request, body, 'Hel"lo', 4)) == CHAT | {
        "messages": [*CHAT["messages"], {"role": "assistant", "content": 'Hel"lo'}],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "max_tokens": 5,
        "min_tokens": 0,
        "stream_options": {"include_usage": True},
        "seed": 1,
    }


def test_a_completion_is_continued_from_its_prompt() -> None:
    request = continuable_request(COMPLETIONS_PATH, encode(COMPLETION))
    assert isinstance(request, ContinuableRequest)
    continued = json.loads(continuation_body(request, encode(COMPLETION), " a time", 2))
    assert continued == COMPLETION | {"prompt": "Once upon a time", "max_tokens": 14}


def test_an_answer_without_text_begins_again() -> None:
    request = continuable_request(CHAT_PATH, encode(CHAT))
    assert isinstance(request, ContinuableRequest)
    assert continuation_body(request, encode(CHAT), "", 0) == encode(CHAT)
