"""Reads the token usage from the end of any response of an engine.

Property: there is none, or it is within its limits and reads the same from a response that states it alone.
"""

from __future__ import annotations

import msgspec

from penstock.routing.usage import MAX_TOKENS, TAIL_BYTES, read_usage

WORDS = (
    *(b'"usage":{', b'"prompt_tokens":', b'"completion_tokens":', b'"prompt_tokens_details":{"cached_tokens":'),
    *(b"data: ", b"[DONE]", b"\n\n", b"null", b"9" * 400, b"-1", b"1.0"),
)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    usage = read_usage(data[-TAIL_BYTES:])
    if usage is None:
        return
    assert 0 < usage.prompt_tokens <= MAX_TOKENS
    assert 0 <= usage.answer_tokens <= MAX_TOKENS
    assert 0 <= usage.cached_tokens <= usage.prompt_tokens
    stated = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    assert read_usage(msgspec.json.encode({"usage": stated})) == usage
