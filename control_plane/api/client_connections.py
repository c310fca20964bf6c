"""Limits of connections to the HTTP API before authentication: size and duration of the head, number of connections.

uvicorn limits neither the size of a request head nor the time to receive it or to read a response. At its connection
limit it rejects all new connections, including connections of agents and probes, so a thousand idle connections would
block the API.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from control_plane.api.responses import problem_response

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size (bytes) of request line and headers, and of trailers; a credential has up to 16 KiB."""

IO_TIMEOUT_S = 10.0
"""Maximum time (s) from the start of a connection, or the end of a response, to the next complete head; and maximum
time (s) in which a client reads nothing of a response."""

MAX_CONNECTIONS = 1_000
"""Maximum number of connections. Each further connection replaces the connection that has been idle longest."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with limits."""

    io_timeout_s = IO_TIMEOUT_S
    max_connections = MAX_CONNECTIONS

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head = True
        self._in_trailers = False
        """Whether the last chunk header is not followed by data: trailers follow the last chunk."""
        self._head_bytes = 0
        """Received bytes of the head, or of the trailers."""
        self._idle_since: float | None = None
        """Time of the event loop since which no request is in progress; None during a request."""
        self._deadline: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._client_certificate: bytes | None = None
        """The client certificate (DER), which TLS has verified; None without one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request; close the longest idle connection if more than `max_connections` are open."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        self._client_certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        self._await_request()
        if len(self.connections) > self.max_connections:
            idle = (
                connection
                for connection in self.connections
                if isinstance(connection, BoundedConnection) and connection._idle_since is not None
            )
            longest_idle = min(idle, key=lambda connection: connection._idle_since or 0.0, default=self)
            longest_idle._idle_since = None
            longest_idle.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._set_deadline(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes; reject a request whose head or trailers are too large."""
        self._head_bytes += len(data) if self._in_head or self._in_trailers else 0
        super().data_received(data)
        is_large = (self._in_head or self._in_trailers) and self._head_bytes > MAX_HEAD_BYTES
        if is_large and not self.transport.is_closing():
            self._reject_fields()

    def on_message_begin(self) -> None:
        """Start a request head; store the client certificate of the connection in the state of the request."""
        super().on_message_begin()
        self.scope["state"]["client_certificate"] = self._client_certificate

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; ignore a trailer, which uvicorn would append to the headers of the request."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start a request; reject a head that is too large and arrived in one read.

        Raises:
            ValueError: the request is rejected; the parser reads no further.
        """
        if len(self.url) + sum(len(name) + len(value) + len(b":\r\n") for name, value in self.headers) > MAX_HEAD_BYTES:
            self._reject_fields()
            raise ValueError("the head is too large")
        self._in_head, self._head_bytes, self._idle_since = False, 0, None
        self._set_deadline(None)
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Expect data or, after the last chunk, trailers."""
        self._in_trailers, self._head_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._in_trailers = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next head."""
        self._in_head, self._in_trailers, self._head_bytes = True, False, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless one is queued."""
        queued = bool(self.pipeline)
        super().on_response_complete()
        if not queued:
            self._await_request()

    def pause_writing(self) -> None:
        """Start the read timeout: the client reads slower than the response is produced."""
        super().pause_writing()
        self._set_deadline(self.io_timeout_s)

    def resume_writing(self) -> None:
        """Cancel the read timeout."""
        super().resume_writing()
        if self._idle_since is None:
            self._set_deadline(None)

    def send_400_response(self, msg: str) -> None:
        """Reject bytes that are not HTTP, with problem details as for all errors, unless the request was rejected."""
        if not self.transport.is_closing():
            self._reject(400, msg)

    def _await_request(self) -> None:
        self._idle_since = self.loop.time()
        self._set_deadline(self.io_timeout_s)

    def _set_deadline(self, timeout_s: float | None) -> None:
        """Set or replace the deadline; None cancels it."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._unsent_bytes = self.transport.get_write_buffer_size() if timeout_s is not None else 0
        self._deadline = self.loop.call_later(timeout_s, self._expire) if timeout_s is not None else None

    def _expire(self) -> None:
        """Close the connection, unless the client has read a part of the unsent response since the deadline was set."""
        if 0 < self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._set_deadline(self.io_timeout_s)
        else:
            self.transport.abort()

    def _reject_fields(self) -> None:
        self._reject(431, f"the request line and the headers, and the trailers, have at most {MAX_HEAD_BYTES} bytes")

    def _reject(self, status: int, detail: str) -> None:
        response = problem_response(status, detail, {"connection": "close"})
        headers = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
        line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        self.transport.write(line + headers + b"\r\n" + bytes(response.body))
        self.transport.close()
