"""One attempt at one entry, from the first byte sent to the last byte received: times and result of the response."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from lab.replay.client_http import HttpConnection

MAX_ERROR_BYTES = 65_536
"""Maximum size (bytes) that is read of the body of a response other than 200."""

SILENT = "silent"
"""The problem of an exchange whose first byte did not arrive within the timeout."""


class ApiError(msgspec.Struct):
    """The error of a response."""

    code: str | int | None = None
    """Error code of Penstock; vLLM sends the HTTP status."""


class _ErrorBody(msgspec.Struct):
    """The fields that are read of an error body: OpenAI's, or those of problem details (RFC 9457)."""

    error: ApiError | None = None
    code: str | None = None


_decoder = msgspec.json.Decoder(_ErrorBody)


class ResponseExchange(ABC):
    """Receives the response to one request. The subclass defines the content of a successful response."""

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
        """Args: `clock` returns the time (s) to record."""
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
        """Whether the response is complete."""
        self.code = ""
        """Code of a typed error in the body or in the stream."""
        self.cancelled = False
        """Whether the client disconnected as planned."""
        self.problem = ""
        """Problem of the connection or the response; empty without a problem."""

    def start(self, connection: HttpConnection, request: bytes, first_byte_timeout_s: float) -> None:
        """Send the request; `finished` is done when the response has ended or failed."""
        self._connection = connection
        self._timer = asyncio.get_running_loop().call_later(first_byte_timeout_s, self.give_up, SILENT)
        connection.send(request, self)

    def give_up(self, problem: str) -> None:
        """End the exchange and close the connection."""
        if self._connection is not None:
            self._connection.close()
        self.broken(problem)

    def answered(self) -> None:
        """Record the arrival of the first byte."""
        self.first_byte_s = self._clock()
        if self._timer is not None:
            self._timer.cancel()

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Record the head of the response."""
        self.status = status
        self.headers = headers

    def body(self, piece: bytes) -> None:
        """Read a part of a response or of an error body."""
        if self.status == 200:
            self._take(piece)
        else:
            self._error_body += piece[: MAX_ERROR_BYTES - len(self._error_body)]

    def ended(self) -> None:
        """End the exchange: the HTTP response is complete."""
        if self.status == 200:
            self.problem = self._missing()
        else:
            self.whole = True
            self.code = _code_in(bytes(self._error_body))
        self._finish()

    def broken(self, problem: str) -> None:
        """End the exchange: the connection or the response failed."""
        self.problem = problem
        self._finish()

    @abstractmethod
    def _take(self, piece: bytes) -> None:
        """Read a part of a response with status 200."""

    @abstractmethod
    def _missing(self) -> str:
        """Return what a body that has ended lacks. If it lacks nothing, return an empty string and set `whole`."""

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
