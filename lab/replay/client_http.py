"""One keep-alive HTTP/1.1 client connection: one request at a time, its response reported in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools

MAX_HEAD_BYTES = 65_536
"""Maximum size (bytes) of a response's header names and values together."""


class Exchange(Protocol):
    """Receives the events of a response."""

    def answered(self) -> None:
        """Called when the first byte arrives."""

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Called when the head is complete; header names are in lower case."""

    def body(self, piece: bytes) -> None:
        """Called when a piece of the body arrives."""

    def ended(self) -> None:
        """Called when the response is complete."""

    def broken(self, problem: str) -> None:
        """Called when the connection fails before the end, or the response is not valid HTTP."""


class HttpConnection(asyncio.Protocol):
    """Sends a request with `send`, reports the response to the exchange, then calls `on_idle` or closes."""

    def __init__(self, on_idle: Callable[[HttpConnection], None], on_closed: Callable[[HttpConnection], None]) -> None:
        """Args: `on_idle` is called when the next request may be sent; `on_closed` when the connection is closed."""
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._exchange: Exchange | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._heard = False
        self._interim = False
        self._ends_with_connection = False
        self.reused = False
        """Whether the connection had an earlier response. The server may have closed a reused connection."""

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Write a request; the connection must be idle."""
        if self._transport.is_closing():
            exchange.broken("closed")
            return
        self._exchange = exchange
        self._heard = False
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection in any state, without a call to the exchange."""
        self._exchange = None
        self._transport.abort()

    @property
    def closing(self) -> bool:
        """Whether the connection is closing."""
        return self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # The server sent a response without a request.
            self._transport.abort()
            return
        if not self._heard:
            self._heard = True
            exchange.answered()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break("what came is not HTTP")

    def connection_lost(self, error: Exception | None) -> None:
        if self._exchange is not None and self._ends_with_connection and error is None:
            self._finish().ended()
        self._break("reset" if error is not None else "closed")
        self._on_closed(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._break("the head is too long")
        else:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._interim = status < 200
        headers, self._headers, self._head_bytes = self._headers, {}, 0
        if self._exchange is None or self._interim:
            return
        framed = b"content-length" in headers or b"transfer-encoding" in headers or status in (204, 304)
        self._ends_with_connection = not framed
        self._exchange.head(status, headers)

    def on_body(self, piece: bytes) -> None:
        if self._exchange is not None:
            self._exchange.body(piece)

    def on_message_complete(self) -> None:
        if self._exchange is None or self._interim:
            return
        exchange = self._finish()
        if self._parser.should_keep_alive() and not self._transport.is_closing():
            self.reused = True
            self._on_idle(self)
        else:
            self._transport.close()
        exchange.ended()

    def _finish(self) -> Exchange:
        assert self._exchange is not None
        exchange, self._exchange, self._ends_with_connection = self._exchange, None, False
        return exchange

    def _break(self, problem: str) -> None:
        if self._exchange is not None:
            self._finish().broken(problem)
        self._transport.abort()
