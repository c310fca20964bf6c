"""Reads the usage that an engine reports at the end of a response, without parsing the response.

The object is OpenAI's (https://platform.openai.com/docs/api-reference/chat/object). vLLM, SGLang, TGI and TensorRT-LLM
send it too, in event streams when the client asks for it (`stream_options.include_usage`).
"""

from __future__ import annotations

import re

import msgspec

TAIL_BYTES = 2048
"""Usage is searched in this many last bytes of a response."""

MAX_TOKENS = 1_000_000
"""Usage above this many tokens is ignored, and no estimate exceeds it: bodies with inlined images are large for other
reasons."""

_NAME = b'"usage"'
_OBJECT = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')


class Usage(msgspec.Struct, frozen=True):
    """The tokens of one request."""

    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that the engine's cache spared."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _ReportedUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


_decoder = msgspec.json.Decoder(_ReportedUsage)


def read_usage(tail: bytes) -> Usage | None:
    """The usage in the last bytes of a response, JSON or an event stream; None where they state none."""
    at = tail.rfind(_NAME)
    found = _OBJECT.match(tail, at) if at >= 0 else None
    if found is None:
        return None
    try:
        reported = _decoder.decode(found[1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not (0 < reported.prompt_tokens <= MAX_TOKENS and 0 <= reported.completion_tokens <= MAX_TOKENS):
        return None
    cached = reported.prompt_tokens_details.cached_tokens if reported.prompt_tokens_details is not None else None
    return Usage(reported.prompt_tokens, reported.completion_tokens, max(0, min(cached or 0, reported.prompt_tokens)))
