"""A client's connection to the HTTP API, bounded before anybody is asked who calls: the head, its time, and how many.

uvicorn keeps a head of any size, waits for ever for one that does not end and for a client that never reads, and at its
limit of connections refuses whoever comes, agents and probes among them: a thousand idle ones would stop everything.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from control_plane.api.responses import problem_response

MAX_HEAD_BYTES = 64 * 1024
"""Of the request line and the headers; a credential has up to 16 KiB."""

PATIENCE_S = 10.0
"""How long (s) a head may take to be whole, and how long a client may read nothing of what is sent to it."""

MAX_CONNECTIONS = 1_000
"""At a time. One more takes the place of the one that has been without a request for longest."""


class BoundedConnection(HttpToolsProtocol):
    """For uvicorn's `http`: its own protocol for HTTP/1.1 with bounds."""

    patience_s = PATIENCE_S
    max_connections = MAX_CONNECTIONS

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head = True
        self._head_bytes = 0
        self._waits_since: float | None = None
        """Time of the event loop since which no request is under way; None while one is."""
        self._deadline: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head, and make room for it."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.max_connections:
            idle = (
                one for one in self.connections if isinstance(one, BoundedConnection) and one._waits_since is not None
            )
            longest = min(idle, key=lambda one: one._waits_since or 0.0, default=self)
            longest._waits_since = None
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._hurry(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; one whose head is too large is refused."""
        self._head_bytes += len(data) if self._in_head else 0
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the request line and the headers have at most {MAX_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        """A request is under way."""
        self._in_head, self._head_bytes, self._waits_since = False, 0, None
        self._hurry(None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next head may come."""
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has come already."""
        queued = bool(self.pipeline)
        super().on_response_complete()
        if not queued:
            self._wait()

    def pause_writing(self) -> None:
        """The client reads slower than we answer: it has `patience_s` to read on."""
        super().pause_writing()
        self._hurry(self.patience_s)

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        if self._waits_since is None:
            self._hurry(None)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, as a problem like every other."""
        self._refuse(400, msg)

    def _wait(self) -> None:
        self._waits_since = self.loop.time()
        self._hurry(self.patience_s)

    def _hurry(self, within_s: float | None) -> None:
        """Set the time within which something has to happen; None: there is none."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._unsent_bytes = self.transport.get_write_buffer_size() if within_s is not None else 0
        self._deadline = self.loop.call_later(within_s, self._due) if within_s is not None else None

    def _due(self) -> None:
        """End the connection, unless the client is still reading."""
        if 0 < self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._hurry(self.patience_s)
        else:
            self.transport.abort()

    def _refuse(self, status: int, detail: str) -> None:
        answer = problem_response(status, detail, {"connection": "close"})
        headers = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        self.transport.write(line + headers + b"\r\n" + bytes(answer.body))
        self.transport.close()
