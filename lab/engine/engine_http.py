"""One HTTP/1.1 server connection over an asyncio transport, with limits on all sizes.

A connection serves one request at a time. It reads during a response to detect that the client disconnects; a client
that sends the next request before the response ends (pipelining, RFC 9112 section 9.3.2) is disconnected.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from lab.engine.openai_format import error_body

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024

KEEP_ALIVE_S = 5.0
"""Idle time (s) after a response until the connection is closed, as in vLLM."""

JSON = "application/json"

_STATUS_LINES = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, reason)
    for status, reason in (
        (200, b"OK"),
        (400, b"Bad Request"),
        (401, b"Unauthorized"),
        (404, b"Not Found"),
        (405, b"Method Not Allowed"),
        (413, b"Content Too Large"),
        (422, b"Unprocessable Content"),
        (429, b"Too Many Requests"),
        (431, b"Request Header Fields Too Large"),
        (500, b"Internal Server Error"),
        (503, b"Service Unavailable"),
    )
}


class Handler(Protocol):
    """Request handler of the connections of one listening socket."""

    def connection_made(self, connection: HttpConnection) -> bool:
        """Return whether to accept the connection."""

    def head_arrived(self, connection: HttpConnection) -> None:
        """Called when the head of a request is complete; the body may be incomplete."""

    def request_arrived(self, connection: HttpConnection) -> None:
        """Called when a request is complete. The handler must respond or reset the connection."""

    def connection_lost(self, connection: HttpConnection) -> None:
        """Called when the client has disconnected or the connection was reset; no more data can be sent."""


class HttpConnection(asyncio.Protocol):
    """One connection. `method`, `path`, `headers` (by lower-case name) and `body` are of the current request."""

    def __init__(self, handler: Handler, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._handler = handler
        self._max_body_bytes = max_body_bytes
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._head_bytes = 0
        self._body_bytes = 0
        self._body_parts: list[bytes] = []
        self._messages = 0
        """Number of requests started since the last response."""
        self._in_head = True
        self._answering = False
        self._closing = False
        self._chunked = True
        self._keep_alive = True
        self._idle_timer: asyncio.TimerHandle | None = None
        self._target = b""
        self.method = ""
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body = b""
        self.paused = False
        """Whether the write buffer is full because the client reads slowly."""
        self.on_resume: Callable[[], None] | None = None
        """Called when the write buffer has drained."""

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports implement asyncio's interface but do not inherit from it.
        self._transport = cast("asyncio.Transport", transport)
        if not self._handler.connection_made(self):
            self.reset()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._stop_idle_timer()
        if self._answering:
            self.reset()
            return
        new_head = self._in_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "protocol upgrades are not supported")
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP: {error}")
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the request head is limited to {MAX_HEAD_BYTES} bytes")
        elif not self._closing:
            self._dispatch(new_head)

    def _dispatch(self, new_head: bool) -> None:
        """Notify the handler of a completed head or request."""
        if new_head:
            self._handler.head_arrived(self)
            if self.headers.get("expect", "").lower() == "100-continue":
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._body_bytes > self._max_body_bytes:
            self._refuse(413, f"the request body is limited to {self._max_body_bytes} bytes")
        elif self._messages > 1:
            self.reset()
        elif self._answering:
            self.body = b"".join(self._body_parts)
            self._body_parts.clear()
            self._handler.request_arrived(self)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._closing = True
        self._stop_idle_timer()
        self.on_resume = None
        self._handler.connection_lost(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.on_resume is not None:
            self.on_resume()

    # Callbacks of the parser. They only record state, because an exception would be reported as the client's error.

    def on_message_begin(self) -> None:
        self._messages += 1

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._messages == 1:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._messages == 1:
            self._in_head = False
            self.method = self._parser.get_method().decode("latin-1")
            self.path = self._target.decode("latin-1").partition("?")[0]
            self._chunked = self._parser.get_http_version() != "1.0"
            self._keep_alive = self._chunked and bool(self._parser.should_keep_alive())

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body_bytes <= self._max_body_bytes:
            self._body_parts.append(part)

    def on_message_complete(self) -> None:
        self._answering = True

    # Methods for the handler.

    def respond(self, status: int, body: bytes, content_type: str = JSON, more: tuple[str, ...] = ()) -> None:
        """Send a complete response to the current request; `more` are additional header lines."""
        self._write(self._head(status, content_type, (f"content-length: {len(body)}", *more)) + body)
        self._answered()

    def begin_stream(self, content_type: str, more: tuple[str, ...] = ()) -> None:
        """Send the head of a streamed response."""
        framing = ("transfer-encoding: chunked",) if self._chunked else ()
        self._write(self._head(200, content_type, (*framing, *more)))

    def send(self, piece: bytes) -> None:
        """Send a piece of the body."""
        if not piece:
            return  # an empty chunk would end the body
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    def end_stream(self, piece: bytes) -> None:
        """Send the last piece of the body."""
        self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(piece), piece) if self._chunked else piece)
        self._answered()

    def reset(self) -> None:
        """Close the connection with a TCP RST, as the crash of a process does."""
        transport = self._transport
        if transport is None:
            return
        self._closing = True
        # uvloop's socket object cannot set options, so a duplicate of the descriptor sets the option.
        with socket.socket(fileno=socket.dup(transport.get_extra_info("socket").fileno())) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def _head(self, status: int, content_type: str, lines: tuple[str, ...]) -> bytes:
        keep = () if self._keep_alive else ("connection: close",)
        text = "".join(f"{line}\r\n" for line in (f"content-type: {content_type}", *lines, *keep))
        return _STATUS_LINES[status] + text.encode("latin-1") + b"\r\n"

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _answered(self) -> None:
        """Prepare for the next request of this connection, or close it."""
        if not self._keep_alive:
            self._closing = True
            if self._transport is not None:
                self._transport.close()
            return
        self._head_bytes = self._body_bytes = self._messages = 0
        self._in_head = True
        self._answering = False
        self._target = b""
        self.headers = {}
        self.body = b""
        self.on_resume = None
        self._idle_timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._close_idle)

    def _close_idle(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _refuse(self, status: int, message: str) -> None:
        """Reject invalid input with an error response and close the connection."""
        if self._closing:
            return
        self._closing, self._keep_alive = True, False
        self.respond(status, error_body(status, "BadRequestError", message))
