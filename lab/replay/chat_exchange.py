"""One try at one entry, from the first byte sent to the last received: times, tokens, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from lab.replay.client_http import HttpConnection
from lab.replay.sse import EventStream, EventTooLong

MAX_ERROR_BYTES = 65_536
"""Of the body of an answer other than 200; the rest is not looked at."""

DONE = b"[DONE]"


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    code: str | int | None = None
    """Penstock's error code; vLLM has the HTTP status here."""


class _Chunk(msgspec.Struct):
    """The fields used of a chat.completion.chunk, an error event, or an error body."""

    id: str | None = None
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: _Error | None = None


_decoder = msgspec.json.Decoder(_Chunk)

SILENT = "silent"
"""The problem of an exchange whose first byte did not come in time."""

SECOND_ANSWER = "second_answer"
"""Stands for the code of a stream with chunks of several answers, or with several roles."""

UNTYPED_ERROR = "error"
"""Stands for the code of an error event that has none."""


class ChatExchange:
    """Listens to the answer to one streamed chat request."""

    __slots__ = (
        "_clock",
        "_connection",
        "_error_body",
        "_events",
        "_hang_up_after_tokens",
        "_id",
        "_role_seen",
        "_timer",
        "cancelled",
        "code",
        "finished",
        "first_byte_s",
        "first_token_s",
        "headers",
        "problem",
        "status",
        "tokens",
        "whole",
    )

    def __init__(self, clock: Callable[[], float], hang_up_after_tokens: int | None) -> None:
        """Args: `clock` gives the time (s) that is noted; None of tokens means to stay to the end."""
        self._clock = clock
        self._connection: HttpConnection | None = None
        self._error_body = bytearray()
        self._events = EventStream()
        self._hang_up_after_tokens = hang_up_after_tokens
        self._id: str | None = None
        self._role_seen = False
        self._timer: asyncio.TimerHandle | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_byte_s: float | None = None
        self.first_token_s: float | None = None
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.tokens = 0
        self.whole = False
        """Whether the answer came to its proper end: [DONE] for a stream."""
        self.code = ""
        """Of a typed error, in the body or in the stream."""
        self.cancelled = False
        """Whether this client hung up."""
        self.problem = ""
        """What happened to the connection, where something did."""

    def start(self, connection: HttpConnection, request: bytes, first_byte_timeout_s: float) -> None:
        """Send the request; `finished` is done when the answer is over, one way or another."""
        self._connection = connection
        self._timer = asyncio.get_running_loop().call_later(first_byte_timeout_s, self.give_up, SILENT)
        connection.send(request, self)

    def give_up(self, problem: str) -> None:
        """End the exchange from this side and drop the connection."""
        if self._connection is not None:
            self._connection.close()
        self.broken(problem)

    def answered(self) -> None:
        """The first byte is here."""
        self.first_byte_s = self._clock()
        if self._timer is not None:
            self._timer.cancel()

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """The head is here."""
        self.status = status
        self.headers = headers

    def body(self, piece: bytes) -> None:
        """Events of a stream, or a part of an error."""
        if self.status != 200:
            self._error_body += piece[: MAX_ERROR_BYTES - len(self._error_body)]
            return
        try:
            for data in self._events.feed(piece):
                if not self.finished.done():
                    self._event(data)
        except EventTooLong:
            self.give_up("an event is too long")

    def ended(self) -> None:
        """The answer is whole, as far as HTTP goes."""
        if self.status != 200:
            self.whole = True
            self.code = _code_in(bytes(self._error_body))
        elif not self.whole:
            self.problem = "the stream ended without [DONE]"
        self._finish()

    def broken(self, problem: str) -> None:
        """The connection died."""
        self.problem = problem
        self._finish()

    def _event(self, data: bytes) -> None:
        if data == DONE:
            self.whole = True
            return
        try:
            chunk = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.code = self.code or "garbled_event"
            return
        if chunk.error is not None:
            self.code = chunk.error.code if isinstance(chunk.error.code, str) else UNTYPED_ERROR
        if chunk.usage is not None and not chunk.choices:
            # An engine may put several tokens into one event; its own count is right.
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

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.finished.done():
            self.finished.set_result(None)


def _code_in(body: bytes) -> str:
    try:
        error = _decoder.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return error.code if error is not None and isinstance(error.code, str) else ""
