"""Reads any response of an engine: its usage, errors, end and identifier, as JSON, an event stream, and JSON lines.

The first byte is the length of the pieces that arrive, the second selects the kind, the coding and the route. Property:
what is forwarded is what arrived, without at most the events that only report usage; the facts do not depend on the
length of the pieces, nor on whether events are relayed as chunks; and the usage is within its limits.
"""

from __future__ import annotations

from penstock.answers.answer_format import AnswerFormat
from penstock.answers.answer_parser import EVENTS, JSON, LINES, AnswerParser
from penstock.answers.token_counts import Usage
from penstock.answers.usage_reader import MAX_REPORTED_TOKENS
from penstock.routes.presets.preset_registry import PRESETS

FORMATS = [AnswerFormat(route) for preset in PRESETS.values() for route in preset.routes(None) if route.offered]
CODINGS = (b"", b"", b"gzip", b"br")

WORDS = (
    *(b'"usage":{', b'"prompt_tokens":', b'"completion_tokens":', b'"prompt_tokens_details":{"cached_tokens":'),
    *(b'{"choices":[],', b'"error":', b'"type":"error"', b'{"message":{"usage":{', b'"meta_info":{', b'"details":{'),
    *(
        b"data: ",
        b"data: [DONE]\n\n",
        b"event: error\n",
        b"\r\n\r\n",
        b"\n\n",
        b": ping\n\n",
        b"null",
        b"NaN",
        b"-1",
        b"1.0",
    ),
)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    size, options, data = (data[0] if data else 0) + 1, data[1] if len(data) > 1 else 0, data[2:]
    kind = (JSON, EVENTS, LINES)[options % 3]
    coding = CODINGS[options // 3 % 4]
    answer_format = FORMATS[options // 12 % len(FORMATS)]
    pieces = _facts(answer_format, kind, coding, data, size)
    whole = _facts(answer_format, kind, coding, data, len(data) + 1)
    assert pieces == whole, (pieces, whole)
    if kind == EVENTS and not coding:
        assert _relayed_facts(answer_format, data) == whole
    hidden = AnswerParser(answer_format, kind, b"", True)
    forwarded = b"".join(hidden.feed(data[at : at + size]) for at in range(0, len(data), size))
    forwarded += hidden.finish(complete=True)
    assert len(forwarded) <= len(data)
    assert kind == EVENTS or forwarded == data


def _facts(
    answer_format: AnswerFormat, kind: int, coding: bytes, data: bytes, size: int
) -> tuple[Usage | None, bool, bool, str]:
    parser = AnswerParser(answer_format, kind, coding, False)
    forwarded = b"".join(parser.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert forwarded + parser.finish(complete=True) == data
    usage = parser.usage
    if usage is not None:
        assert 0 <= usage.prompt_tokens <= 3 * 64 * MAX_REPORTED_TOKENS
        assert 0 <= usage.answer_tokens <= 3 * 64 * MAX_REPORTED_TOKENS
        assert 0 <= usage.cached_tokens <= usage.prompt_tokens
    return usage, parser.error is not None, parser.ended, parser.ids.object_id


def _relayed_facts(answer_format: AnswerFormat, data: bytes) -> tuple[Usage | None, bool, bool, str]:
    """The facts if each event arrives as one chunk."""
    parser = AnswerParser(answer_format, EVENTS, b"", False)
    *events, rest = data.split(b"\n\n")
    for body in (*(event + b"\n\n" for event in events), rest):
        size_line = b"%x\r\n" % len(body)
        if not parser.skim_chunk(size_line + body + b"\r\n", len(size_line)):
            parser.feed(body)
    parser.finish(complete=True)
    return parser.usage, parser.error is not None, parser.ended, parser.ids.object_id
