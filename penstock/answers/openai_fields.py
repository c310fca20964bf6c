"""The members of OpenAI's chats and completions that are read in one pass (`openai_answer`)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

_ABSENT: Final = msgspec.Raw(b"")


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    choices: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    object: msgspec.Raw = _ABSENT
    type: msgspec.Raw = _ABSENT
    status: msgspec.Raw = _ABSENT


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Text(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[_Choice] | None = None
    data: msgspec.Raw = _ABSENT


class _Delta(msgspec.Struct):
    content: msgspec.Raw = _ABSENT
    reasoning_content: msgspec.Raw = _ABSENT
    reasoning: msgspec.Raw = _ABSENT
    thinking: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT
    function_call: msgspec.Raw = _ABSENT
    refusal: msgspec.Raw = _ABSENT
    audio: msgspec.Raw = _ABSENT


class _EventChoice(msgspec.Struct):
    delta: _Delta | None = None
    text: msgspec.Raw = _ABSENT
    finish_reason: msgspec.Raw = _ABSENT


class _Event(msgspec.Struct):
    choices: list[_EventChoice] | None = None
    error: msgspec.Raw = _ABSENT
    type: msgspec.Raw = _ABSENT


answer_decoder: Final[Any] = msgspec.json.Decoder(_Answer)
text_decoder: Final[Any] = msgspec.json.Decoder(_Text)
event_decoder: Final[Any] = msgspec.json.Decoder(_Event)
