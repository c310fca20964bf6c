"""Receives the streamed response to one chat request: tokens and result."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lab.replay.response_exchange import ApiError, ResponseExchange
from lab.replay.sse import EventStream, EventTooLong

DONE = b"[DONE]"


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    """The fields that are read of a chat.completion.chunk or an error event."""

    id: str | None = None
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: ApiError | None = None


_decoder = msgspec.json.Decoder(_Chunk)

SECOND_ANSWER = "second_answer"
"""Code of a stream with chunks of several responses, or with several roles."""

UNTYPED_ERROR = "error"
"""Code of an error event without a code."""


class ChatExchange(ResponseExchange):
    """Receives the response to one streamed chat request."""

    __slots__ = ("_events", "_hang_up_after_tokens", "_id", "_role_seen")

    def __init__(self, clock: Callable[[], float], hang_up_after_tokens: int | None) -> None:
        """Args: `clock` returns the time (s) to record; `hang_up_after_tokens` None reads to the end."""
        super().__init__(clock)
        self._events = EventStream()
        self._hang_up_after_tokens = hang_up_after_tokens
        self._id: str | None = None
        self._role_seen = False

    def _take(self, piece: bytes) -> None:
        try:
            for data in self._events.feed(piece):
                if not self.finished.done():
                    self._event(data)
        except EventTooLong:
            self.give_up("an event is too long")

    def _missing(self) -> str:
        return "" if self.whole else "the stream ended without [DONE]"

    def _event(self, data: bytes) -> None:
        if data == DONE:
            self.whole = True
            return
        try:
            chunk = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.code = self.code or "garbled_event"
            return
        if chunk.error is not None:
            self.code = chunk.error.code if isinstance(chunk.error.code, str) else UNTYPED_ERROR
        if chunk.usage is not None and not chunk.choices:
            # An engine may send several tokens in one event, so the engine's count is authoritative.
            self.tokens = max(self.tokens, chunk.usage.completion_tokens)
        self._id = self._id or chunk.id
        if chunk.id is not None and chunk.id != self._id:
            self.code = self.code or SECOND_ANSWER
        for choice in chunk.choices:
            delta = choice.delta
            if delta is None:
                continue
            if delta.role is not None:
                self.code = self.code or (SECOND_ANSWER if self._role_seen else "")
                self._role_seen = True
            if delta.content:
                self._token()

    def _token(self) -> None:
        self.tokens += 1
        if self.first_token_s is None:
            self.first_token_s = self._clock()
        if self._hang_up_after_tokens is not None and self.tokens >= self._hang_up_after_tokens:
            self.cancelled = True
            self.give_up("")
