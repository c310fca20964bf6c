"""Recognises the first events of streams that only announce an answer: the role of a chat, or identifiers.

Sources: as in `answer_errors`.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

import msgspec

from penstock.answers.openai_fields import event_decoder
from penstock.answers.usage_reader import members_of

OUTPUT: Final = 0
"""A part of an answer, an error, or an end."""
ANNOUNCES: Final = 1
UNKNOWN: Final = 2
"""An event without choices, or of a form that no API of the presets has."""

_EMPTY: Final = frozenset({b"", b"null", b'""', b"[]", b"{}"})
_TYPES: Final = frozenset(
    {
        b'"message_start"',
        b'"content_block_start"',
        b'"response.created"',
        b'"response.queued"',
        b'"response.in_progress"',
        b'"response.output_item.added"',
        b'"response.content_part.added"',
    }
)
"""Types of events of Anthropic and of OpenAI's Responses without a part of the answer."""

_KNOWN: Final = frozenset(
    {"error", "message", "response", "done", "token", "generated_text", "text", "output_ids", "meta_info", "index"}
)
"""Members of which each event has one in the streams of other APIs: of Ollama, TGI and SGLang."""


def kind_of_first(data: bytes, known: Set[str]) -> int:
    """What the data of an event is: OUTPUT, ANNOUNCES or UNKNOWN.

    Args:
        known: members of events that are parts of an answer, besides those of all APIs; empty if an event of any form
            is one.
    """
    try:
        event = event_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return OUTPUT
    choices = event.choices
    if choices is None:
        if event.type:
            return ANNOUNCES if bytes(event.type) in _TYPES else OUTPUT
        members = members_of(data) if known else None
        if members is None or not (_KNOWN.isdisjoint(members) and known.isdisjoint(members)):
            return OUTPUT
        return UNKNOWN
    if bytes(event.error) not in _EMPTY:
        return OUTPUT
    if not choices:
        return UNKNOWN
    for choice in choices:
        delta = choice.delta
        parts = [choice.text, choice.finish_reason]
        if delta is not None:
            parts += [delta.content, delta.reasoning_content, delta.reasoning, delta.thinking, delta.tool_calls]
            parts += [delta.function_call, delta.refusal, delta.audio]
        if [part for part in parts if bytes(part) not in _EMPTY]:
            return OUTPUT
    return ANNOUNCES
