"""One HTTP/1.1 connection to an engine or a peer agent: one request at a time, kept alive between requests.

The connection parses a read as a whole and then reports it to a *sink*, so a request that reuses a connection needs no
task and no await. It returns to its pool before it reports the read that ends a response, but after all bytes of that
read have been examined, because further bytes would be interpreted as the next response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

from penstock.http.chunk_framing import CHUNK_END, body_of_whole_chunk
from penstock.http.head_template import MAX_MISSES, raw_head
from penstock.http.header_rules import REFUSAL_HEADER, Header
from penstock.http.response_head import (
    ResponseHead,
    ResponseHeadCache,
    is_cacheable,
    is_delimited,
    is_malformed,
)
from regional_agent.http.write_batcher import WriteBatcher
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_sink import (
    Broken,
    BytesSink,
    ChunkReceiver,
    ResponseSink,
    Stale,
    TooLarge,
    TunnelSink,
    UpstreamError,
)

MAX_HEAD_BYTES: Final = 64 * 1024
"""Maximum size (bytes) of a response head, and of consecutive reads that contain no body byte."""

MAX_INTERIM: Final = 16
"""Maximum number of interim (1xx) responses before the final response."""

NOT_PROCESSED: Final = "its response could not be processed"
"""Why a response ends whose sink raised an exception, which the log has."""


class ConnectionOwner(Protocol):
    """The pool that a connection belongs to."""

    def release(self, connection: UpstreamConnection) -> None:
        """Accept a connection that can be reused."""

    def discard(self, connection: UpstreamConnection) -> None:
        """Drop a connection that has closed."""


class UpstreamConnection:
    """A keep-alive connection, used by at most one sink at a time; the callback object of an httptools parser.

    An `asyncio.Protocol`, without that base: mypyc does not compile classes with interpreted bases.
    """

    def __init__(self, owner: ConnectionOwner, batcher: WriteBatcher, address: Address) -> None:
        """Create a connection without a transport.

        Args:
            owner: receives the connection after each complete response, and when it closes.
            batcher: collects the writes of all connections of the owner.
        """
        self._owner = owner
        self._batcher = batcher
        self.transport: asyncio.Transport | None = None
        """The transport of asyncio while the server is connected, else None."""
        self.address = address
        self._request_whole = True
        """The current request has been written completely."""
        self._chunked = False
        """The body of the current request is sent in chunks."""
        self.writable = True
        """False while the write buffer is above its high-water mark."""
        self.sink: ResponseSink | None = None
        self.trust: object = None
        """The TLS settings of the address when the connection was opened; None for the settings of the pool."""
        self.host = ""
        """The IP address of the server, if `address` has a host name; else empty."""
        self.host_line = b""
        """The Host header of requests."""
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[Header] = []
        self._head: ResponseHead | None = None
        """The head of the response, if it is in the current read."""
        self._parts: list[bytes] = []
        """The parts of the body in the current read."""
        self._in_head = True
        self._fed_bytes = 0
        """Bytes given to the parser since the last body byte."""
        self._interim = 0
        self.on_interim: Callable[[list[Header]], None] | None = None
        """Receives the headers of each interim response 102 to the current request; None if they are skipped."""
        self._keep_alive = True
        self._done = False
        """The response is complete."""
        self._eof_received = False
        """The server has ended its data: over TLS, with close_notify (uvloop reports no other end)."""
        self._head_only = False
        """The response ends with its head."""
        self._used = False
        """The connection has completed a response before."""
        self._upgrade_sink: TunnelSink | None = None
        """The sink whose request offered an upgrade."""
        self._tunnel: BytesSink | None = None
        self.error_trailer = b""
        """The reason code with which a peer marks a well-framed but incomplete response, in a trailer."""
        self._head_cache: ResponseHeadCache | None = None
        self._misses = 0
        """Number of consecutive responses whose head did not match the cached head."""
        self._read = b""
        """The current read, while the parser processes a head at the beginning of the read."""
        self._counted_left = 0
        """Number of outstanding body bytes of a response whose head matched the cache."""
        self.relay: ChunkReceiver | None = None
        """Receives reads that are exactly one chunk, instead of the sink, until the response ends."""
        self._relay_ready: ChunkReceiver | None = None
        """`relay` while the parser is between two chunks, else None."""
        self._between_chunks = False
        """Whether the last event of the parser was the end of a chunk."""

    def send(self, sink: ResponseSink, request: bytes) -> None:
        """Write one complete request; `sink` receives the response."""
        self.sink, self.error_trailer, self.on_interim = sink, b"", None
        # The parser, which resets these, has not seen the end of a response whose head was found in the cache.
        self.relay = self._relay_ready = None
        self._between_chunks = False
        self._in_head, self._fed_bytes, self._counted_left, self._interim, self._done = True, 0, 0, 0, False
        assert self.transport is not None
        self._batcher.write(self.transport, request)

    def send_partial(self, sink: ResponseSink, head: bytes, body: bytes, *, chunked: bool) -> None:
        """Write the beginning of a request; `send_body` and `end_request` complete it."""
        self._request_whole, self._chunked = False, chunked
        self.send(sink, head)
        self.send_body(body)

    def send_upgrade(self, sink: TunnelSink, request: bytes) -> None:
        """Write a request that offers a protocol upgrade."""
        self._upgrade_sink = sink
        self.send(sink, request)

    def expect_head_only(self) -> None:
        """End the response to the next request, a HEAD, with its head. The connection is not reused after it."""
        # The parser cannot be instructed to expect no body after a Content-Length or a Transfer-Encoding, and a server
        # may send a body nevertheless.
        self._head_only, self._misses = True, MAX_MISSES

    def send_body(self, body: bytes) -> None:
        """Write a further part of the request's body."""
        if body:
            self.write_bytes(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)

    def end_request(self) -> None:
        """End the request's body."""
        if self._chunked:
            self.write_bytes(b"0\r\n\r\n")
        self._request_whole, self._chunked = True, False

    def write_bytes(self, data: bytes) -> None:
        """Write bytes, of a request or into a tunnel, if the server is still connected."""
        if self.transport is not None:
            self._batcher.write(self.transport, data)

    def write_eof(self) -> None:
        """Half-close the tunnel; close the tunnel if the transport has no half-close (TLS)."""
        if self.transport is not None:
            self._batcher.write_eof(self.transport)

    def pause_reading(self) -> None:
        """Stop reading: the receiver of the response is slow."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading after `pause_reading`."""
        if self.transport is not None:
            self.transport.resume_reading()

    def close(self) -> None:
        """Close after all written data has been sent."""
        self.sink = self._tunnel = self.relay = self._relay_ready = None
        if self.transport is not None:
            self._batcher.flush()
            self.transport.close()

    def abort(self) -> None:
        """Close at once, without further callbacks. The upstream cancels the request when the connection closes."""
        self.sink = self._tunnel = self.relay = self._relay_ready = None
        if self.transport is not None:
            self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse a read. Malformed data, and data outside a response, close the connection."""
        relay = self._relay_ready
        if relay is not None and (body_at := body_of_whole_chunk(data)) and relay.forward(data, body_at):
            return
        if self._tunnel is not None:
            self._tunnel.on_bytes(data)
            return
        sink = self.sink
        if sink is None:
            self.abort()
            return
        if self._counted_left:
            self._receive_counted(sink, None, data)
            return
        if self._in_head and self._fed_bytes == 0 and self._misses < MAX_MISSES and self._match_cached_head(sink, data):
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
            elif self._fed_bytes > MAX_HEAD_BYTES:
                self._break(TooLarge("the response head or trailers are too large"))
            elif self.sink is sink:
                if self._head is not None or self._parts:
                    head, parts, self._head, self._parts = self._head, self._parts, None, []
                    self._report(sink, head, parts, ended=False)
                # A read may end within the size line of the next chunk, which the parser does not report, so that the
                # next read is not relayed.
                may_relay = self._between_chunks and self.sink is sink and data.endswith(CHUNK_END)
                self._relay_ready = self.relay if may_relay else None
        self._read = b""

    def eof_received(self) -> bool | None:
        """Process a half-close by the server. Outside a tunnel `connection_lost` follows."""
        self._eof_received = True
        if self._tunnel is not None:
            self._tunnel.on_eof()
            return not self.address.tls
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Report a broken response, unless the close delimits its body."""
        self.transport = None
        self._owner.discard(self)
        sink, self.sink, self._tunnel = self.sink, None, None
        if sink is None:
            return
        # Over TLS, a close without close_notify ends no response (RFC 9112, section 9.8).
        complete = exc is None and (self._eof_received or not self.address.tls)
        if complete and not (self._in_head or self._keep_alive or is_delimited(self._headers)):
            self._report(sink, None, [], ended=True)
        else:
            silent = self._in_head and self._fed_bytes == 0 and self._interim == 0
            kind = Stale if self._used and silent else Broken
            why = f": {exc}" if isinstance(exc, OSError) else ""
            sink.on_broken(kind(f"closed before the response was complete{why}"))

    def pause_writing(self) -> None:
        """Report that the write buffer rose above its high-water mark."""
        self.writable = False
        if self.sink is not None:
            self.sink.on_writable(False)

    def resume_writing(self) -> None:
        """Report that the write buffer drained."""
        self.writable = True
        if self.sink is not None:
            self.sink.on_writable(True)

    # httptools callbacks

    def on_message_begin(self) -> None:
        """Start a response. A response after the expected response makes the connection unusable."""
        if self._done:
            self._keep_alive = False
            return
        self._headers = []
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header line. Trailers are dropped, except for a peer's error trailer."""
        if self._done:
            return
        name, value = name.lower(), value.rstrip(b" \t")
        if self._in_head:
            self._headers.append((name, value))
        elif name == REFUSAL_HEADER:
            self.error_trailer = value

    def on_headers_complete(self) -> None:
        """Validate a complete head and keep it for the sink."""
        if self._done:
            return
        self._in_head = False
        read, self._read = self._read, b""
        self._keep_alive = self._parser.should_keep_alive()
        status = self._parser.get_status_code()
        if status == 102 and self.on_interim is not None:
            # Their number is limited by MAX_HEAD_BYTES.
            self.on_interim(self._headers)
        elif 100 <= status < 200:
            self._interim += 1
        elif self.sink is not None:
            if is_malformed(status, self._parser.get_http_version(), self._headers):
                self._break(Broken("the response head is malformed"))
            else:
                head = ResponseHead(status, self._headers, dict(self._headers))
                if is_cacheable(head) and (raw := raw_head(read, b"HTTP/")):
                    self._head_cache = ResponseHeadCache(raw, head, keep_alive=self._keep_alive)
                self._head = head
                if self._head_only:
                    self._done, self._keep_alive = True, False

    def on_body(self, chunk: bytes) -> None:
        """Keep a part of the body, without chunk framing, for the sink."""
        self._fed_bytes = 0
        if self.sink is not None and not self._done:
            self._parts.append(chunk)

    def on_chunk_header(self) -> None:
        """Relay nothing, because the parser is within a chunk."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """Permit relaying, because the parser is between two chunks."""
        self._between_chunks = True

    def on_message_complete(self) -> None:
        """Mark the response as complete. Interim (1xx) responses are skipped."""
        self.relay = self._relay_ready = None
        if 100 <= self._parser.get_status_code() < 200:
            self._in_head = True
            if self._interim > MAX_INTERIM:
                self._break(Broken(f"more than {MAX_INTERIM} interim responses"))
        else:
            self._done = True

    # repeated heads

    def _match_cached_head(self, sink: ResponseSink, data: bytes) -> bool:
        """Process a read that begins with the cached head; returns False if the parser must process the read.

        The parser receives no part of a response that is processed here, and remains between two messages.
        """
        if self._head_cache is not None:
            found = self._head_cache.match(data)
            if found is not None:
                self._misses = 0
                head, body_at = found
                self._in_head, self._keep_alive, self._headers = False, self._head_cache.keep_alive, head.headers
                self._counted_left = head.length
                self._receive_counted(sink, head, data[body_at:])
                return True
            self._misses += 1
        self._read = data
        return False

    def _receive_counted(self, sink: ResponseSink, head: ResponseHead | None, data: bytes) -> None:
        """Process a part of a body delimited by Content-Length, without the parser; `head` as for `on_read`."""
        length, left_bytes = len(data), self._counted_left
        if length > left_bytes:
            # Data after the response makes the connection unusable.
            self._keep_alive, data, length = False, data[:left_bytes], left_bytes
        self._counted_left = left_bytes - length
        parts = [data] if data else []
        if self._counted_left:
            self._report(sink, head, parts, ended=False)
        else:
            self._head, self._parts = head, parts
            self._end()

    def _report(self, sink: ResponseSink, head: ResponseHead | None, parts: list[bytes], *, ended: bool) -> None:
        """Report a read. If the sink raises, the response ends as a broken one."""
        try:
            sink.on_read(head, parts, ended)
        except Exception:
            is_awaited = ended or self.sink is sink
            self.abort()
            if is_awaited:
                sink.on_broken(Broken(NOT_PROCESSED))
            raise

    def _end(self) -> None:
        """End the response after the whole read was processed; return the connection to its owner, or close it."""
        sink, self.sink, self.on_interim = self.sink, None, None
        head, parts, self._head, self._parts = self._head, self._parts, None, []
        self._done, self._used = False, True
        transport = self.transport
        request_sent = self._request_whole and self.writable
        if self._keep_alive and request_sent and transport is not None and not transport.is_closing():
            self._owner.release(self)
        elif transport is not None:
            # The connection cannot be reused, for example if the server responded before it read the whole request.
            transport.abort()
        if sink is not None:
            try:
                sink.on_read(head, parts, True)
            except Exception:
                # No event follows: the request would stay open until its deadline.
                sink.on_broken(Broken(NOT_PROCESSED))
                raise

    def _after_upgrade(self, rest: bytes) -> None:
        sink, self._upgrade_sink = self._upgrade_sink, None
        if sink is None or self.sink is not sink or self._done or not self._parser.should_upgrade():
            self._break(Broken("the server switched protocols"))
            return
        self._tunnel = sink.on_upgraded(self._headers)
        if rest and self._tunnel is not None:
            self._tunnel.on_bytes(rest)

    def _break(self, error: UpstreamError) -> None:
        """Close the connection, and report what has arrived before the error."""
        sink, head, parts, self._head, self._parts = self.sink, self._head, self._parts, None, []
        try:
            if sink is not None and (head is not None or parts):
                sink.on_read(head, parts, False)
                sink = self.sink
        finally:
            self.abort()
            if sink is not None:
                sink.on_broken(error)
