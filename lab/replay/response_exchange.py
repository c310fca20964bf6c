"""One try at one entry, from the first byte sent to the last received: times, and how the response ended."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from lab.replay.client_http import HttpConnection

MAX_ERROR_BYTES = 65_536
"""Of the body of an answer other than 200; the rest is not looked at."""

SILENT = "silent"
"""The problem of an exchange whose first byte did not come in time."""


class _Error(msgspec.Struct):
    code: str | int | None = None
    """Penstock's error code; vLLM has the HTTP status here."""


class _ErrorBody(msgspec.Struct):
    """The fields used of an error's body: OpenAI's, or those of problem details (RFC 9457)."""

    error: _Error | None = None
    code: str | None = None


_decoder = msgspec.json.Decoder(_ErrorBody)


class ResponseExchange(ABC):
    """Listens to the answer to one request. What a successful answer consists of is up to the subclass."""

    __slots__ = (
        "_clock",
        "_connection",
        "_error_body",
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

    def __init__(self, clock: Callable[[], float]) -> None:
        """Args: `clock` gives the time (s) that is noted."""
        self._clock = clock
        self._connection: HttpConnection | None = None
        self._error_body = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_byte_s: float | None = None
        self.first_token_s: float | None = None
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.tokens = 0
        self.whole = False
        """Whether the answer came to its proper end."""
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
        """A part of an answer, or of an error."""
        if self.status == 200:
            self._take(piece)
        else:
            self._error_body += piece[: MAX_ERROR_BYTES - len(self._error_body)]

    def ended(self) -> None:
        """The answer is whole, as far as HTTP goes."""
        if self.status == 200:
            self.problem = self._missing()
        else:
            self.whole = True
            self.code = _code_in(bytes(self._error_body))
        self._finish()

    def broken(self, problem: str) -> None:
        """The connection died."""
        self.problem = problem
        self._finish()

    @abstractmethod
    def _take(self, piece: bytes) -> None:
        """Read a part of an answer with status 200."""

    @abstractmethod
    def _missing(self) -> str:
        """What a body that has ended lacks; empty, and `whole` is set, where it lacks nothing."""

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.finished.done():
            self.finished.set_result(None)


def _code_in(body: bytes) -> str:
    try:
        found = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if found.error is not None:
        return found.error.code if isinstance(found.error.code, str) else ""
    return found.code or ""
