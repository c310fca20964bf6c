"""Reads the usage that an engine reports at the end of a response, without parsing the response.

By default, the usage is the object of OpenAI's API (https://platform.openai.com/docs/api-reference/chat/object). vLLM,
SGLang, TGI and TensorRT-LLM send the same object, in event streams only on request (`stream_options.include_usage`).
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from penstock.routes.route import Route, UsageFields

TAIL_BYTES = 2048
"""Number of bytes searched for usage: of each of the last two writes of a response, and of the beginning of a stream if
its format states usage there."""

MAX_TOKENS = 1_000_000
"""Maximum number of tokens of a prompt or answer. Larger reported numbers are ignored, and estimates are limited to
this number, because inlined images make a body large without tokens in proportion."""

OPENAI_USAGE = Route("", "").usage
"""The default `usage` of all routes: one object, which can be compared by identity."""

Pattern = re.Pattern[bytes]

_NAME = b'"usage"'
_OBJECT = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')


class Usage(msgspec.Struct, frozen=True):
    """The tokens of one request."""

    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that the engine read from its cache."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _ReportedUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


_decoder = msgspec.json.Decoder(_ReportedUsage)


def read_usage(tail: bytes, fields: UsageFields | None = None) -> Usage | None:
    """The usage in the last bytes of a response (JSON, an event stream, or JSON lines); None if they state no usage.

    Args:
        tail: the last bytes.
        fields: names of the usage fields; None for the names in OpenAI's API.
    """
    if fields is not None:
        return _read_fields(tail, *_patterns(fields))
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


def _read_fields(
    tail: bytes, of_object: Pattern | None, of_prompt: Pattern, of_answer: Pattern, of_cached: Pattern
) -> Usage | None:
    """The usage in named fields. Prompt tokens may be 0: some APIs state them only at the start of a stream."""
    if of_object is not None:
        # A stream may state its usage several times, as in Anthropic's events message_start and message_delta.
        tail = b"".join(of_object.findall(tail))
    prompt, answer, cached = (_last(pattern, tail) for pattern in (of_prompt, of_answer, of_cached))
    if (prompt is None and answer is None) or max(prompt or 0, answer or 0) > MAX_TOKENS:
        return None
    return Usage(prompt or 0, answer or 0, min(cached or 0, prompt or 0))


def _last(pattern: Pattern, data: bytes) -> int | None:
    numbers = pattern.findall(data)
    return int(numbers[-1]) if numbers else None


@lru_cache(maxsize=256)
def _patterns(fields: UsageFields) -> tuple[Pattern | None, Pattern, Pattern, Pattern]:
    """The expressions for the object and for the numbers of prompt, answer and cached tokens.

    A name in a string of the response does not match: there, its quotes are escaped.
    """
    of_object = None
    if fields.object:
        of_object = re.compile(rb'"%b"\s*+:\s*+(\{(?:[^{}]|\{[^{}]*+\})*+\})' % re.escape(fields.object.encode()))
    prompt, answer, cached = (
        re.compile(rb'"%b"\s*+:\s*+(\d{1,9})(?![\d.eE])' % re.escape(name.encode()))
        for name in (fields.prompt_tokens, fields.answer_tokens, fields.cached_tokens)
    )
    return of_object, prompt, answer, cached
