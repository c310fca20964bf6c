"""Connections to engines and peer agents: one request at a time each, kept alive between requests.

A connection reports to a *sink*; everything happens in protocol callbacks, so a request that finds an idle connection
costs no task and no await. A connection goes back to the pool only after everything that was read with the end of a
response has been looked at: bytes beyond it would be taken for the next request's response.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from regional_agent.carry.host_names import is_host
from regional_agent.carry.upstream_sink import (
    Broken,
    BytesSink,
    ConnectFailed,
    Sink,
    TooLarge,
    TunnelSink,
    UpstreamError,
)

CONNECT_TIMEOUT_S = 1.0
"""A listener in reach answers a SYN within a round trip; longest terrestrial ones are below 0.4 s."""

TLS_TIMEOUT_S = 3.0
"""A TLS handshake takes two more round trips and some arithmetic."""

MOST_IDLE_PER_ADDRESS = 64
"""Connections kept for reuse to one address."""

LARGEST_HEAD_BYTES = 64 * 1024
"""Response heads (status line and headers) above this are garbage, and so is more than this without a body byte."""

MOST_HEADERS = 256

MOST_INTERIM = 16
"""Interim (1xx) responses before the real one; more are a fault."""

_VERSIONS = frozenset({"1.1", "1.0"})


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    tls: bool = False
    """Whether it speaks TLS."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address in `http://host:port[/...]`, or https.

        Raises:
            ValueError: it is not such a URL.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not is_host(parts.hostname or "") or not parts.port:
            raise ValueError(f"{url!r} is not of the form http://host:port (or https)")
        return cls(str(parts.hostname), parts.port, parts.scheme == "https")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UpstreamConnection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 client connection, owned by at most one sink at a time."""

    __slots__ = (
        "_chunks",
        "_done",
        "_fed_bytes",
        "_headers",
        "_in_head",
        "_interim",
        "_keep_alive",
        "_offered",
        "_parser",
        "_pool",
        "_request_whole",
        "_transport",
        "_tunnel",
        "address",
        "sink",
        "writable",
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
        self._fed_bytes = 0
        self._interim = 0
        self._keep_alive = True
        self._done = False
        """The response is whole."""
        self._request_whole = True
        self._chunks = False
        """The body of the request at hand is sent in chunks."""
        self._offered: TunnelSink | None = None
        """Who offered to upgrade."""
        self._tunnel: BytesSink | None = None
        self.writable = True
        """Whether the other side keeps up with what is written."""

    def send(self, sink: Sink, request: bytes) -> None:
        """Write one request and let `sink` hear of its response."""
        self.sink = sink
        self._in_head, self._fed_bytes, self._interim, self._done = True, 0, 0, False
        assert self._transport is not None
        self._transport.write(request)

    def send_beginning(self, sink: Sink, head: bytes, body: bytes, *, chunked: bool) -> None:
        """Write a request of whose body `send_more` brings the rest."""
        self._request_whole, self._chunks = False, chunked
        self.send(sink, head)
        self.send_more(body)

    def send_more(self, body: bytes) -> None:
        """More of a body that was not whole."""
        if self._transport is not None and body:
            self._transport.write(b"%x\r\n%b\r\n" % (len(body), body) if self._chunks else body)

    def end_request(self) -> None:
        """The body is whole."""
        if self._chunks and self._transport is not None:
            self._transport.write(b"0\r\n\r\n")
        self._request_whole, self._chunks = True, False

    def offer_upgrade(self, sink: TunnelSink, request: bytes) -> None:
        """Write a request that offers to speak something else from then on."""
        self._offered = sink
        self.send(sink, request)

    def write_bytes(self, data: bytes) -> None:
        """Bytes through the tunnel that this has become."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close once what was written has been sent."""
        self.sink = self._tunnel = None
        if self._transport is not None:
            self._transport.close()

    def write_eof(self) -> None:
        """Nothing more will be written into the tunnel; where the transport cannot say so (TLS), close."""
        if self._transport is not None:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

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
        self.sink = self._tunnel = None
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
        if self._tunnel is not None:
            self._tunnel.on_bytes(data)
            return
        sink = self.sink
        if sink is None:
            self.abort()
            return
        self._fed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if self._done:
                self._keep_alive = False
                self._end()
            else:
                self._break(Broken(f"not an HTTP response: {error}"))
        else:
            if self._done:
                self._end()
            elif self._fed_bytes > LARGEST_HEAD_BYTES:
                self._break(TooLarge("the response's head or trailers are too large"))
            elif self.sink is sink:
                sink.on_pause()

    def eof_received(self) -> bool | None:
        """The other side will send no more; `connection_lost` follows, but in a tunnel."""
        if self._tunnel is not None:
            self._tunnel.on_eof()
            return not self.address.tls
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the sink, unless the response ended just so (a body delimited by the close)."""
        self._transport = None
        self._pool.forget(self)
        sink, self.sink, self._tunnel = self.sink, None, None
        if sink is None:
            return
        if exc is None and self._close_delimits_body():
            sink.on_end()
        else:
            sink.on_broken(Broken(f"closed before the response was whole{f': {exc}' if exc else ''}"))

    def pause_writing(self) -> None:
        """The other side reads slowly."""
        self.writable = False
        if self.sink is not None:
            self.sink.on_writable(False)

    def resume_writing(self) -> None:
        """The other side has caught up."""
        self.writable = True
        if self.sink is not None:
            self.sink.on_writable(True)

    # httptools callbacks

    def on_message_begin(self) -> None:
        """A new response, or, after the one that was asked for, another that nobody did."""
        if self._done:
            self._keep_alive = False
            return
        self._headers = []
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line; those of trailers are dropped."""
        if self._in_head and not self._done:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        if self._done:
            return
        self._in_head = False
        self._keep_alive = self._parser.should_keep_alive()
        status = self._parser.get_status_code()
        if status < 200:
            self._interim += 1
        elif self.sink is not None:
            if self._is_garbage(status):
                self._break(Broken("the response's head is not one"))
            else:
                self.sink.on_head(status, self._headers)

    def on_body(self, chunk: bytes) -> None:
        """Some of the body, de-chunked."""
        self._fed_bytes = 0
        if self.sink is not None and not self._done:
            self.sink.on_body(chunk)

    def on_message_complete(self) -> None:
        """The response is whole; interim (1xx) ones do not count."""
        if self._parser.get_status_code() < 200:
            self._in_head = True
            if self._interim > MOST_INTERIM:
                self._break(Broken(f"more than {MOST_INTERIM} interim responses"))
        else:
            self._done = True

    def _is_garbage(self, status: int) -> bool:
        """Heads that the parser lets pass and that others might read differently."""
        version = self._parser.get_http_version()
        if status > 599 or len(self._headers) > MOST_HEADERS or version not in _VERSIONS:
            return True
        if b"transfer-encoding" not in dict(self._headers):
            return False
        codings = [value.lower() for name, value in self._headers if name == b"transfer-encoding"]
        return codings != [b"chunked"] or version == "1.0"

    def _end(self) -> None:
        """Everything that came with the response's end has been read: free for another request, or closed."""
        sink, self.sink = self.sink, None
        self._done = False
        transport = self._transport
        if self._keep_alive and self._request_whole and transport is not None and not transport.is_closing():
            self._pool.give_back(self)
        elif transport is not None:
            transport.close()
        if sink is not None:
            sink.on_end()

    def _after_upgrade(self, rest: bytes) -> None:
        sink, self._offered = self._offered, None
        if sink is None or self.sink is not sink or not self._parser.should_upgrade():
            self._break(Broken("the server switched protocols"))
            return
        self._tunnel = sink.on_upgraded(self._headers)
        if rest and self._tunnel is not None:
            self._tunnel.on_bytes(rest)

    def _close_delimits_body(self) -> bool:
        """A response without a length, and not chunked, is whole when the server closes."""
        names = {name for name, _ in self._headers}
        delimited = bool(names & {b"content-length", b"transfer-encoding"})
        return bool(self._headers) and not self._in_head and not delimited and not self._keep_alive

    def _break(self, error: UpstreamError) -> None:
        sink = self.sink
        self.abort()
        if sink is not None:
            sink.on_broken(error)


class UpstreamPool:
    """Idle connections by address. `take` is synchronous; only a new connection needs `connect`."""

    def __init__(self, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context) -> None:
        """Starts empty. `tls` gives the context for a new connection to an address that speaks TLS."""
        self._idle: dict[Address, list[UpstreamConnection]] = {}
        self._tls = tls

    def take(self, address: Address) -> UpstreamConnection | None:
        """The most recently used idle connection to `address`, if any still stands."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self, address: Address, timeout_s: float | None = None) -> UpstreamConnection:
        """A new connection; raises ConnectFailed."""
        loop = asyncio.get_running_loop()
        allowed_s = timeout_s if timeout_s is not None else TLS_TIMEOUT_S if address.tls else CONNECT_TIMEOUT_S
        try:
            async with asyncio.timeout(allowed_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self, address),
                    address.host,
                    address.port,
                    ssl=self._tls() if address.tls else None,
                )
        except (OSError, TimeoutError, ValueError) as error:
            raise ConnectFailed(f"cannot connect to {address}: {error or 'timed out'}") from error
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose response is whole, up to a bound."""
        idle = self._idle.get(connection.address)
        if idle is None:
            idle = self._idle[connection.address] = []
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
        for connection in [one for idle in self._idle.values() for one in idle]:
            connection.abort()
        self._idle.clear()
