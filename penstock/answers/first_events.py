"""Recognises the first events of streams that only announce an answer: the role of a chat, or identifiers.

Sources: as in `answer_errors`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.answers.openai_fields import event_decoder

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


def only_announces(data: bytes) -> bool:
    """Whether the data of an event has no part of an answer, no error and no end."""
    try:
        event = event_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    choices = event.choices
    if choices is None:
        return bytes(event.type) in _TYPES
    if bytes(event.error) not in _EMPTY:
        return False
    if not choices:
        return True
    choice, delta = choices[0], choices[0].delta
    parts = [choice.text, choice.finish_reason]
    if delta is not None:
        if bytes(delta.content) not in _EMPTY:
            return False
        parts += [delta.reasoning_content, delta.reasoning, delta.thinking, delta.tool_calls]
        parts += [delta.function_call, delta.refusal, delta.audio]
    return [part for part in parts if bytes(part) not in _EMPTY] == []
