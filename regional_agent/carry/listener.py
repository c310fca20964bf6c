"""Connections from clients: parse requests, one at a time to an application, and write what it answers.

Everything a client can make us hold is bounded: head size and count, body size, time to send a request, idle time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Protocol, cast

import httptools

from regional_agent.carry.messages import Request, response_head

LARGEST_HEAD_BYTES = 64 * 1024
MOST_HEADERS = 128
LARGEST_READ_BYTES = 256 * 1024
"""What the event loop reads at once; the end of one request and the start of the next may share it."""

MOST_PIPELINED = 16
"""Requests parsed ahead on one connection before reading stops."""

REQUEST_TIMEOUT_S = 30.0
"""A request that has begun must be whole within this long (s): slow senders hold a connection, not an engine."""

IDLE_TIMEOUT_S = 75.0
"""A connection without a request in progress is closed after this long (s)."""

SWEEP_S = 1.0
"""How often timeouts are looked at: one timer for a listener, not one for a connection."""


class Handler(Protocol):
    """What is at work on a request and must hear how its client fares."""

    def on_client_gone(self) -> None: ...
    def on_client_writable(self, writable: bool) -> None: ...


class Application(Protocol):
    """Answers requests: by `connection.respond` at once, or by a handler that it starts and returns."""

    def handle(self, request: Request, connection: ClientConnection) -> Handler | None: ...
    def malformed(self, status: int, detail: str) -> tuple[bytes, bytes]:
        """The content type and body for a request that could not be parsed."""


class Listener:
    """Every connection to one application, and the limits they live under."""

    def __init__(self, application: Application, *, largest_body_bytes: int) -> None:
        """`largest_body_bytes` bounds each request's body, which is held whole until it is routed."""
        self.application = application
        self.largest_body_bytes = largest_body_bytes
        self.connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self.draining = False
        self._deserted = asyncio.Event()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns where. A second process may listen on the same port, so that it can take over."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ClientConnection(self), host, port, reuse_port=True, backlog=1024
        )
        self._sweeper = asyncio.create_task(self._sweep())
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    def stop_accepting(self) -> None:
        """Take no new connections; those there finish what they have and close."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle()

    async def drain(self, grace_s: float) -> int:
        """Wait until every request is answered, `grace_s` at most, then cut; returns how many were cut."""
        if self.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._deserted.wait(), grace_s)
        cut = len(self.connections)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        return cut

    def left(self, connection: ClientConnection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if self.draining and not self.connections:
            self._deserted.set()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = loop.time()
            for connection in list(self.connections):
                connection.check_timeouts(now)


class ClientConnection(asyncio.Protocol):
    """One connection from a client. Requests are answered strictly in order; later ones wait parsed."""

    __slots__ = (
        "_current",
        "_current_head_bytes",
        "_handler",
        "_in_head",
        "_listener",
        "_parser",
        "_pumping",
        "_reading",
        "_refused",
        "_serving",
        "_since",
        "_transport",
        "_unparsed_bytes",
        "_waiting",
        "peer_ip",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._current: Request | None = None
        """The request that is being received."""
        self._current_head_bytes = 0
        self._in_head = True
        self._unparsed_bytes = 0
        """Read since the current head began, while it is not whole."""
        self._serving: Request | None = None
        """The request that is being answered."""
        self._waiting: deque[Request] = deque()
        self._handler: Handler | None = None
        self._refused: tuple[int, str] | None = None
        self._reading = True
        self._pumping = False
        self._since = asyncio.get_running_loop().time()
        self.peer_ip = ""

    # what handlers use

    def write(self, data: bytes) -> None:
        """Send bytes to the client, if it is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def respond(self, status: int, headers: list[bytes], body: bytes) -> None:
        """Answer the current request whole."""
        request = self._serving
        lines = [*headers, b"content-length: %d\r\n" % len(body)]
        if request is None or not request.keep_alive or self._listener.draining:
            lines.append(b"connection: close\r\n")
        head_only = request is not None and request.method == b"HEAD"
        self.write(response_head(status, lines) + (b"" if head_only else body))
        self.finished(keep_alive=True)

    def finished(self, *, keep_alive: bool) -> None:
        """The current request has been answered; go on with the next, or close."""
        request, self._serving, self._handler = self._serving, None, None
        self._since = asyncio.get_running_loop().time()
        if request is None or not keep_alive or not request.keep_alive or self._listener.draining:
            self.close()
            return
        self._serve_next()

    def close(self) -> None:
        """Close once what was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once: the client sees a broken response, not a short one that looks whole."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def draining(self) -> bool:
        """Whether the listener is going away, so that responses should say so."""
        return self._listener.draining

    # timeouts

    def close_if_idle(self) -> None:
        """Close unless a request is being received or answered."""
        if self._serving is None and self._current is None:
            self.close()

    def check_timeouts(self, now: float) -> None:
        """Close a connection that has sent half a request, or nothing, for too long."""
        if self._serving is not None:
            return
        if self._current is not None and now - self._since > REQUEST_TIMEOUT_S:
            self._refuse(408, "the request did not arrive in time")
        elif self._current is None and now - self._since > IDLE_TIMEOUT_S:
            self.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_ip = peer[0] if peer else ""
        self._listener.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            return
        try:
            self._parser.feed_data(data)
            if self._in_head:
                self._count_unparsed(len(data))
        except httptools.HttpParserUpgrade:
            self._refuse(400, "protocol upgrades are not served here")
        except httptools.HttpParserError as error:
            self._refuse(400, f"not a valid HTTP request: {error}")

    def eof_received(self) -> None:
        """A client that closes its sending side has left; `connection_lost` follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.left(self)
        self._waiting.clear()
        handler, self._handler, self._serving = self._handler, None, None
        if handler is not None:
            handler.on_client_gone()

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.on_client_writable(False)

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.on_client_writable(True)

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._current = Request()
        self._current_head_bytes = 0
        self._in_head, self._unparsed_bytes = True, 0
        if self._serving is None:
            self._since = asyncio.get_running_loop().time()

    def on_url(self, url: bytes) -> None:
        if self._current is not None and self._refused is None:
            self._current.target += url
            self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._current is not None and self._refused is None:
            self._current.headers.append((name.lower(), value))
            self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._current is None or self._refused is not None:
            return
        self._current.method = self._parser.get_method()
        self._current.keep_alive = self._parser.should_keep_alive()
        self._current.http_1_0 = self._parser.get_http_version() == "1.0"
        length = self._current.header(b"content-length")
        if length is not None and int(length) > self._listener.largest_body_bytes:
            self._refuse(413, f"the body is larger than {self._listener.largest_body_bytes} bytes")
        elif (self._current.header(b"expect") or b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, chunk: bytes) -> None:
        if self._current is None or self._refused is not None:
            return
        self._current.body += chunk
        if len(self._current.body) > self._listener.largest_body_bytes:
            self._refuse(413, f"the body is larger than {self._listener.largest_body_bytes} bytes")

    def on_message_complete(self) -> None:
        request, self._current = self._current, None
        self._in_head, self._unparsed_bytes = True, 0
        if request is None or self._refused is not None:
            return
        self._waiting.append(request)
        if self._serving is None:
            self._serve_next()
        elif len(self._waiting) >= MOST_PIPELINED and self._reading and self._transport is not None:
            self._transport.pause_reading()
            self._reading = False

    def _serve_next(self) -> None:
        """Answer waiting requests until one needs time. A loop, not recursion: answers may be immediate."""
        if self._pumping:
            return
        self._pumping = True
        while self._serving is None and self._waiting and self._transport is not None:
            request = self._waiting.popleft()
            self._serving = request
            handler = self._listener.application.handle(request, self)
            if self._serving is request:
                self._handler = handler
        self._pumping = False
        if not self._reading and len(self._waiting) < MOST_PIPELINED and self._transport is not None:
            self._transport.resume_reading()
            self._reading = True

    def _count_unparsed(self, more_bytes: int) -> None:
        """The parser holds an unfinished header itself, so its growth is bounded here, by what was read for it."""
        self._unparsed_bytes += more_bytes
        if self._unparsed_bytes > LARGEST_HEAD_BYTES + LARGEST_READ_BYTES and self._refused is None:
            self._refuse(431, "the request head is too large")

    def _count_head(self, more_bytes: int) -> None:
        self._current_head_bytes += more_bytes
        assert self._current is not None
        if self._current_head_bytes > LARGEST_HEAD_BYTES or len(self._current.headers) > MOST_HEADERS:
            self._refuse(431, "the request head is too large")

    def _refuse(self, status: int, detail: str) -> None:
        """Answer what cannot be parsed or held, and close: where the next request begins is unknown."""
        self._refused = (status, detail)
        if self._serving is not None:
            self.abort()
            return
        content_type, body = self._listener.application.malformed(status, detail)
        lines = [
            b"content-type: %b\r\n" % content_type,
            b"content-length: %d\r\n" % len(body),
            b"connection: close\r\n",
        ]
        self.write(response_head(status, lines) + body)
        self.close()
