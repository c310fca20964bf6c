"""Encodes a chat completion whose second half is a call of a tool, as vLLM streams it."""

from __future__ import annotations

from typing import Any

import msgspec

from lab.engine.openai_format import CompletionFormat, words

OPENING, CLOSING = '{"text":"', '"}'
"""What is around the words in the arguments of a call. Both belong to the token beside them."""


class ToolCallFormat:
    """Encodes the response to one request: text, then a call."""

    content_type = CompletionFormat.content_type

    def __init__(self, text: CompletionFormat, first_word: int, call_from: int, tool: str) -> None:
        """Create the format of one response.

        Args:
            text: format of the text.
            first_word: index of the first word of the response; greater than 0 if it continues a generated text.
            call_from: index of the first word of the arguments; at least `first_word`.
            tool: name of the called tool.
        """
        self._text = text
        self._first_word = first_word
        self._text_tokens = call_from - first_word
        self._tool = tool

    def role_event(self) -> bytes:
        """As `AnswerFormat.role_event`."""
        return self._text.role_event()

    def token_events(self, start: int, count: int, finish_reason: str | None, tokens_per_event: int = 1) -> bytes:
        """As `AnswerFormat.token_events`."""
        end, until = start + count, min(start + count, self._text_tokens)
        events = []
        if start < until:
            reason = finish_reason if until == end else None
            events.append(self._text.token_events(start, until - start, reason, tokens_per_event))
        for token in range(max(start, self._text_tokens), end):
            reason = finish_reason if token + 1 == end else None
            call: dict[str, Any] = {"index": 0, "function": {"arguments": self._arguments(token, 1, reason)}}
            if token == self._text_tokens:
                call |= {"id": f"call-{self._first_word + token}", "type": "function"}
                call["function"]["name"] = self._tool
            events.append(self._text.delta_event({"tool_calls": [call]}, _reason(reason), token + 1))
        return b"".join(events)

    def closing(self, finish_reason: str, usage: dict[str, Any], *, include_usage: bool) -> bytes:
        """As `AnswerFormat.closing`."""
        return self._text.closing(finish_reason, usage, include_usage=include_usage)

    def whole(self, tokens: int, finish_reason: str, usage: dict[str, Any]) -> bytes:
        """As `AnswerFormat.whole`."""
        arguments = self._arguments(self._text_tokens, tokens - self._text_tokens, finish_reason)
        function = {"name": self._tool, "arguments": arguments}
        call = {"id": f"call-{self._first_word + self._text_tokens}", "type": "function", "function": function}
        message = {"role": "assistant", "content": words(self._first_word, self._text_tokens), "tool_calls": [call]}
        return self._text.body_of({"message": message}, _reason(finish_reason) or finish_reason, usage)

    def _arguments(self, first: int, count: int, finish_reason: str | None) -> str:
        opening = OPENING if first == self._text_tokens else ""
        closing = CLOSING if finish_reason == "stop" else ""
        return opening + words(self._first_word + first, count) + closing


def _reason(finish_reason: str | None) -> str | None:
    return "tool_calls" if finish_reason == "stop" else finish_reason


def called_text(arguments: str) -> str:
    """Return the words in the arguments of a call; raises ValueError if they are not a whole JSON object."""
    return msgspec.json.decode(arguments, type=dict[str, str])["text"]
