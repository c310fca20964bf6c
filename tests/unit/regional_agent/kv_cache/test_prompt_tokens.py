"""The requests for the tokens of prompts."""

from __future__ import annotations

import json

import pytest

from regional_agent.kv_cache.prompt_tokens import tokenize_body


def test_a_request_for_tokens_has_what_determines_them_and_the_name_in_the_engine() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [1], "max_tokens": 5, "user": "u"}
    asked = json.loads(tokenize_body(json.dumps(body).encode(), "engine-m") or b"")
    assert asked == {"model": "engine-m", "messages": body["messages"], "tools": [1]}
    assert json.loads(tokenize_body(b'{"prompt":"y"}', "m") or b"") == {"model": "m", "prompt": "y"}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"model":"m"}',
        b'{"prompt":[1,2]}',
        b'{"prompt":"x","cache_salt":"s"}',
        b'{"prompt":"x","messages":[]}',
        b'{"model":' + b"[" * 100_000,
    ],
)
def test_prompts_whose_blocks_do_not_follow_from_the_text_are_not_asked_for(body: bytes) -> None:
    assert tokenize_body(body, "m") is None
