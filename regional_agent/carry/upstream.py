"""Connections to engines and peer agents: one request at a time each, kept alive between requests.

A connection reports to a *sink*; everything happens in protocol callbacks, so a request that finds an idle connection
costs no task and no await.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import httptools

CONNECT_TIMEOUT_S = 1.0
"""A listener in reach answers a SYN within a round trip; longest terrestrial ones are below 0.4 s."""

MOST_IDLE_PER_ADDRESS = 64
"""Connections kept for reuse to one address."""

LARGEST_HEAD_BYTES = 64 * 1024
"""Response heads (status line and headers) above this are garbage."""

NO_BODY_STATUSES = frozenset({204, 304})


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address in `http://host:port[/...]`.

        Raises:
            ValueError: it is not such a URL.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.port is None:
            raise ValueError(f"{url!r} is not of the form http://host:port")
        return cls(parts.hostname, parts.port)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class UpstreamError(Exception):
    """The other side did not give a whole answer."""


class ConnectFailed(UpstreamError):
    """Nobody accepted the connection: the request has certainly not started."""


class Broken(UpstreamError):
    """The connection closed, was reset, or carried something that is not HTTP."""


class TimedOut(UpstreamError):
    """No answer within the time allowed."""


class TooLarge(UpstreamError):
    """More bytes than anybody asked for."""


class Sink(Protocol):
    """Who hears of a response. After `on_end` or `on_broken` nothing more comes of it.

    `on_pause` follows whatever one read brought, so that a sink may write once for all of it.
    """

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...
    def on_body(self, chunk: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_pause(self) -> None: ...
    def on_broken(self, error: UpstreamError) -> None: ...
    def on_writable(self, writable: bool) -> None: ...


class UpstreamConnection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 client connection, owned by at most one sink at a time."""

    __slots__ = (
        "_headers",
        "_in_head",
        "_keep_alive",
        "_parser",
        "_pool",
        "_transport",
        "_unparsed_bytes",
        "address",
        "sink",
    )

    def __init__(self, pool: UpstreamPool, address: Address) -> None:
        """`pool` takes the connection back after each whole response."""
        self._pool = pool
        self.address = address
        self.sink: Sink | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = True
        self._unparsed_bytes = 0
        self._keep_alive = True

    def send(self, sink: Sink, request: bytes) -> None:
        """Write one request and let `sink` hear of its response."""
        self.sink = sink
        self._in_head, self._unparsed_bytes = True, 0
        assert self._transport is not None
        self._transport.write(request)

    def pause_reading(self) -> None:
        """Take no more bytes in: the receiver of the response is slow."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on after `pause_reading`."""
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once and say nothing more: what runs on the other side is cancelled by it."""
        self.sink = None
        if self._transport is not None:
            self._transport.abort()

    @property
    def usable(self) -> bool:
        """Whether another request may be written."""
        return self._transport is not None and not self._transport.is_closing()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; garbage, and bytes that nobody asked for, end the connection."""
        if self.sink is None:
            self.abort()
            return
        try:
            self._parser.feed_data(data)
            if self._in_head:
                self._count_unparsed(len(data))
            if self.sink is not None:
                self.sink.on_pause()
        except httptools.HttpParserUpgrade:
            self._break(Broken("the server switched protocols"))
        except httptools.HttpParserError as error:
            self._break(Broken(f"not an HTTP response: {error}"))

    def eof_received(self) -> None:
        """The other side will send no more; `connection_lost` follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the sink, unless the response ended just so (a body delimited by the close)."""
        self._transport = None
        self._pool.forget(self)
        sink, self.sink = self.sink, None
        if sink is None:
            return
        if self._close_delimits_body():
            sink.on_end()
        else:
            sink.on_broken(Broken(f"closed before the response was whole{f': {exc}' if exc else ''}"))

    def pause_writing(self) -> None:
        """The other side reads slowly."""
        if self.sink is not None:
            self.sink.on_writable(False)

    def resume_writing(self) -> None:
        """The other side has caught up."""
        if self.sink is not None:
            self.sink.on_writable(True)

    # httptools callbacks

    def on_message_begin(self) -> None:
        """A new response."""
        self._headers = []
        self._in_head, self._unparsed_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        self._keep_alive = self._parser.should_keep_alive()
        status = self._parser.get_status_code()
        if self.sink is not None and status >= 200:
            self.sink.on_head(status, self._headers)

    def on_body(self, chunk: bytes) -> None:
        """Some of the body, de-chunked."""
        if self.sink is not None:
            self.sink.on_body(chunk)

    def on_message_complete(self) -> None:
        """The response is whole; interim (1xx) ones do not count."""
        if self._parser.get_status_code() < 200:
            return
        sink, self.sink = self.sink, None
        if self._keep_alive and self.usable:
            self._pool.give_back(self)
        elif self._transport is not None:
            self._transport.close()
        if sink is not None:
            sink.on_end()

    def _count_unparsed(self, more_bytes: int) -> None:
        """The parser holds an unfinished head itself, so its growth is bounded here, by what was read for it."""
        self._unparsed_bytes += more_bytes
        if self._unparsed_bytes > LARGEST_HEAD_BYTES:
            self._break(TooLarge("the response head is too large"))

    def _close_delimits_body(self) -> bool:
        names = {name for name, _ in self._headers}
        return bool(self._headers) and not names & {b"content-length", b"transfer-encoding"} and not self._keep_alive

    def _break(self, error: UpstreamError) -> None:
        sink = self.sink
        self.abort()
        if sink is not None:
            sink.on_broken(error)


class UpstreamPool:
    """Idle connections by address. `take` is synchronous; only a new connection needs `connect`."""

    def __init__(self) -> None:
        """Starts empty."""
        self._idle: dict[Address, list[UpstreamConnection]] = {}

    def take(self, address: Address) -> UpstreamConnection | None:
        """The most recently used idle connection to `address`, if any still stands."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self, address: Address, timeout_s: float = CONNECT_TIMEOUT_S) -> UpstreamConnection:
        """A new connection; raises ConnectFailed."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(lambda: UpstreamConnection(self, address), *address)
        except (OSError, TimeoutError) as error:
            raise ConnectFailed(f"cannot connect to {address}: {error or 'timed out'}") from error
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose response is whole, up to a bound."""
        idle = self._idle.setdefault(connection.address, [])
        if len(idle) < MOST_IDLE_PER_ADDRESS:
            idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: UpstreamConnection) -> None:
        """Drop a connection that closed while idle, and the address with its last one."""
        idle = self._idle.get(connection.address)
        if idle is not None:
            if connection in idle:
                idle.remove(connection)
            if not idle:
                del self._idle[connection.address]

    def close(self) -> None:
        """Close every idle connection."""
        for connection in list(self._every_idle()):
            connection.abort()
        self._idle.clear()

    def _every_idle(self) -> Iterator[UpstreamConnection]:
        for idle in self._idle.values():
            yield from idle
