"""Limits of connections to the HTTP API before authentication: size and duration of the head, pipelined requests.

uvicorn limits neither the size of a request head nor the time to receive it or to read a response, and it reads
pipelined requests faster than it serves them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from control_plane.api.responses import problem_response
from control_plane.api.serving.open_connections import STATE_KEY, OpenConnection

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size (bytes) of request line and headers, and of trailers; a credential has up to 16 KiB."""

MAX_PIPELINED = 8
"""Number of requests of one connection that wait for the response to an earlier one. No further ones are parsed, except
those in the same PARSED_BYTES."""

PARSED_BYTES = 512
"""Number of bytes, besides a body with a Content-Length, that are parsed at once: they contain up to 30 requests."""

IO_TIMEOUT_S = 10.0
"""Maximum time (s) from the start of a connection, or the end of a response, to the next complete head; and maximum
time (s) in which a client reads nothing of a response."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with limits.

    Args:
        connection: the connection in the list of open connections.
        io_timeout_s: see IO_TIMEOUT_S.
        given: arguments of uvicorn's protocol.
    """

    def __init__(self, connection: OpenConnection, *, io_timeout_s: float = IO_TIMEOUT_S, **given: Any) -> None:
        super().__init__(**given)
        self._connection = connection
        self._io_timeout_s = io_timeout_s
        self._unparsed = memoryview(b"")
        """Received bytes that wait until fewer requests are pipelined."""
        self._is_parsing = False
        self._is_final = False
        """Whether the connection ends with the last request that was parsed."""
        self._in_head = True
        self._in_trailers = False
        """Whether the last chunk header is not followed by data: trailers follow the last chunk."""
        self._head_bytes = 0
        """Received bytes of the head, or of the trailers."""
        self._body_left_bytes = 0
        """Bytes of a body with a Content-Length that have not arrived."""
        self._served: RequestResponseCycle | None = None
        """The request that is being served, or was served last."""
        self._is_idle = True
        """Whether no request is in progress."""
        self._deadline: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._client_certificate: bytes | None = None
        """The client certificate (DER), which TLS has verified; None without one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self.flow = _Flow(transport, lambda: self._is_full)
        tls = transport.get_extra_info("ssl_object")
        self._client_certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        self._connection.abort = transport.abort
        self._await_request()
        if self._connection.is_closed:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._set_deadline(None)
        self._connection.close()
        self._unparsed, self._is_final = memoryview(b""), True
        self.pipeline.clear()
        if self._served is not None:
            # uvicorn informs the request that was parsed last, which may be another one.
            self._served.disconnected = True
            self._served.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _is_full(self) -> bool:
        """Whether no further requests are parsed until a response is complete."""
        return len(self.pipeline) >= MAX_PIPELINED

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._parse()

    def _parse(self) -> None:
        """Parse the received bytes while few requests wait; reject a request whose head or trailers are too large."""
        if self._is_parsing:
            return
        self._is_parsing = True
        while self._unparsed and not self._is_full and not self._is_final and not self.transport.is_closing():
            size = max(PARSED_BYTES, self._body_left_bytes)
            part, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            self._head_bytes += len(part) if self._in_head or self._in_trailers else 0
            super().data_received(part)  # type: ignore[arg-type]
            is_large = (self._in_head or self._in_trailers) and self._head_bytes > MAX_HEAD_BYTES
            if is_large and not self.transport.is_closing():
                self._reject_fields()
        self._is_parsing = False
        if self._is_final or self.transport.is_closing():
            self._unparsed = memoryview(b"")
        elif self._unparsed:
            self.flow.pause_reading()

    def on_message_begin(self) -> None:
        """Start a request head; store the connection and its client certificate in the state of the request."""
        super().on_message_begin()
        self.scope["state"]["client_certificate"] = self._client_certificate
        self.scope["state"][STATE_KEY] = self._connection

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
        self._in_head, self._head_bytes = False, 0
        if self._is_idle:
            self._is_idle = False
            self._connection.begin()
        self._set_deadline(None)
        self._body_left_bytes = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        super().on_headers_complete()
        if self.parser.should_upgrade():
            # The parser cannot continue after the request; no protocol is offered for an upgrade.
            self.cycle.keep_alive, self._is_final = False, True

    def on_chunk_header(self) -> None:
        """Expect data or, after the last chunk, trailers."""
        self._in_trailers, self._head_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._in_trailers = False
        self._body_left_bytes = max(0, self._body_left_bytes - len(body))
        if not self.cycle.response_complete:
            self._connection.receive(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next head."""
        self._in_head, self._in_trailers, self._head_bytes = True, False, 0
        self._body_left_bytes = 0
        if not self._is_idle:
            self._connection.wait(for_client=False)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless one is queued."""
        queued = bool(self.pipeline)
        super().on_response_complete()
        self._parse()
        if not queued and self.cycle.response_complete:
            self._await_request()

    def pause_writing(self) -> None:
        """Start the read timeout: the client reads slower than the response is produced."""
        super().pause_writing()
        self._connection.wait(for_client=True)
        self._set_deadline(self._io_timeout_s)

    def resume_writing(self) -> None:
        """Cancel the read timeout."""
        super().resume_writing()
        if not self._is_idle:
            self._connection.wait(for_client=False)
            self._set_deadline(None)

    def send_400_response(self, msg: str) -> None:
        """Reject bytes that are not HTTP, with problem details as for all errors, unless the request was rejected."""
        if not self.transport.is_closing():
            self._reject(400, msg)

    def _await_request(self) -> None:
        self._is_idle = True
        self._connection.begin()
        self._set_deadline(self._io_timeout_s)

    def _set_deadline(self, timeout_s: float | None) -> None:
        """Set or replace the deadline; None cancels it."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._unsent_bytes = self.transport.get_write_buffer_size() if timeout_s is not None else 0
        self._deadline = self.loop.call_later(timeout_s, self._expire) if timeout_s is not None else None

    def _expire(self) -> None:
        """Close the connection, unless the client has read a part of the unsent response since the deadline was set."""
        if 0 < self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._set_deadline(self._io_timeout_s)
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


class _Flow(FlowControl):
    """uvicorn's flow control, which resumes reading only if further requests may be parsed."""

    def __init__(self, transport: asyncio.Transport, is_full: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._is_full = is_full

    def resume_reading(self) -> None:
        if not self._is_full():
            super().resume_reading()
