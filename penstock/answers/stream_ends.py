"""The ends of streams: which formats define one, and which records are one.

Sources: as in `answer_errors`.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.answers.event_splitter import event_fields
from penstock.answers.usage_reader import Fields, members_of
from penstock.answers.values import finished_in

_FIRST_OF_ANTHROPIC: Final = b'"message_start"'
_OF_RESPONSES: Final = b'"response.'
_ENDING_TYPES: Final = frozenset(
    {b'"message_stop"', b'"response.completed"', b'"response.incomplete"', b'"response.failed"'}
)
_TRUE: Final = b"true"
_DONE: Final = b"[DONE]"
_STRING_START: Final = b'"'
_FINISH_REASON: Final = b'"finish_reason"'

may_finish: Final = re.compile(rb'_reason"\s*:\s*(?:"[^"]|\{)').search
"""Finds what each record with a finish reason contains. In generated text, the quotes would be escaped."""


def awaited_ends(record: Fields | None, awaited: int, *, first: bool, is_framed: bool) -> int:
    """The number of answers that have no finish reason after a record; 0 if the format of the stream defines no end.

    Args:
        record: None if it is no JSON object.
        awaited: the number before the record.
        first: whether it is the first record, which shows the format.
        is_framed: whether the framing ends the stream. See `defines_end`.
    """
    if record is None or (first and not defines_end(record, is_framed=is_framed)):
        return 0 if first else awaited
    return max(0, awaited - finished_in(record))


def defines_end(first: Fields, *, is_framed: bool) -> bool:
    """Whether each whole stream of the format has an end mark or a finish reason; False for an unknown format.

    Args:
        first: the first record of the stream.
        is_framed: whether the framing ends the stream. A proxy that cannot tell a broken stream from a whole one, such
            as nginx with HTTP/1.0 to the engine, ends its chunks in order. Small servers of OpenAI's API may state
            neither finish reason nor `[DONE]`, and omit the member that engines send as null until the end.
    """
    choices = first.get("choices")
    if choices is not None:
        # OpenAI's chats and completions.
        return not is_framed or bytes(choices).find(_FINISH_REASON) >= 0
    kind = first.get("type")
    if kind is not None:
        return bytes(kind) == _FIRST_OF_ANTHROPIC or bytes(kind).startswith(_OF_RESPONSES)
    if "done" in first:
        # Ollama.
        return "response" in first or "message" in first
    if "token" in first:
        # TGI.
        return "generated_text" in first
    raw = first.get("meta_info")
    details = members_of(raw) if raw is not None else None
    # SGLang's native API.
    return details is not None and "finish_reason" in details


def is_end(record: Fields) -> bool:
    """Whether a record is the end mark of its stream: of Anthropic, OpenAI's Responses, Ollama or TGI."""
    kind, done, text = record.get("type"), record.get("done"), record.get("generated_text")
    if kind is not None and bytes(kind) in _ENDING_TYPES:
        return True
    if done is not None and bytes(done) == _TRUE:
        return True
    return text is not None and "token" in record and bytes(text).startswith(_STRING_START)


def is_half(rest: bytes, *, lines: bool) -> bool:
    """Whether a stream broke off within a record: what follows its last whole record is the beginning of an object, or
    of `[DONE]`."""
    data = rest.strip() if lines else event_fields(rest)[1]
    if data is None or not data.startswith(b"{"):
        return data is not None and data != _DONE and _DONE.startswith(data)
    return members_of(data) is None


def last_record(part: bytes, *, lines: bool) -> Fields | None:
    """The last record of a part of a stream that ends with a whole record; None if it is no JSON object."""
    text = part.rstrip()
    if lines:
        return members_of(text[text.rfind(b"\n") + 1 :])
    begin = max(text.rfind(b"\ndata:"), text.rfind(b"\rdata:")) + 1
    _, data = event_fields(part[begin:])
    return members_of(data) if data is not None else None
