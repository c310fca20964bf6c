"""One client connection: parses its bytes into requests, or becomes a tunnel.

After a request that is malformed or exceeds a limit, the connection is closed, since the start of the next request is
unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

from penstock.routing.reasons import Reason
from regional_agent.http.chunked_end import ChunkedEnd
from regional_agent.http.headers.head_cache import MAX_MISSES, RequestHeadCache, raw_head
from regional_agent.http.headers.header_rules import Header
from regional_agent.http.kept_bodies import joined
from regional_agent.http.listener_state import ListenerState
from regional_agent.http.messages import Request, without_upgrade
from regional_agent.http.request_head import complete_head, head_bytes, request_line_problem, skip_empty_lines
from regional_agent.http.request_receiver import RequestReceiver
from regional_agent.http.request_sequence import (
    CLOSING,
    REQUESTS,
    SMALL_BODY_BYTES,
    TUNNEL,
    UPGRADING,
    Application,
)

MAX_READ_BYTES: Final = 256 * 1024
"""Maximum size of one read of the event loop. A read may contain the end of a request and the start of the next one."""

PARSED_BYTES: Final = 4096
"""Maximum size of the part of a read that is parsed at once, besides a body with a known length. When
`Limits.max_pipelined` requests wait, no further part is parsed: a part contains up to 150 requests."""

CHUNKED_PARSED_BYTES: Final = 16 * 1024
"""The same within a chunked body."""

CHUNK_OVERHEAD_BYTES: Final = 16 * 1024
"""Maximum size of the chunk framing, extensions and trailers of a body, in addition to eight times the body's size."""


class ConnectionRegistry(Protocol):
    """The listener, which counts its connections."""

    def on_connected(self, connection: ClientConnection) -> Reason | None:
        """Register a connection; returns the reason to refuse it, or None."""

    def on_closed(self, connection: ClientConnection) -> None:
        """Unregister a connection."""

    @property
    def crowded(self) -> bool:
        """Whether connections over the limit are closed without a response."""


class ClientConnection(RequestReceiver):
    """An `asyncio.Protocol` and the callback object of an httptools parser."""

    __slots__ = (
        "_add_header",
        "_begins_at",
        "_chunked_end",
        "_counted_left",
        "_declined",
        "_fed_bytes",
        "_head_cache",
        "_head_parts",
        "_misses",
        "_next_at",
        "_parse_due",
        "_parser",
        "_part",
        "_read",
        "_read_bytes",
        "_registry",
        "_unparsed",
    )

    def __init__(self, listener: ListenerState, application: Application, registry: ConnectionRegistry) -> None:
        super().__init__(listener, application)
        self._registry = registry
        self._parser = httptools.HttpRequestParser(self)
        self._add_header: Callable[[Header], None] = list[Header]().append
        """Appends to the headers of the current request."""
        self._read_bytes = 0
        """Size (bytes) of the part that is being parsed."""
        self._fed_bytes = 0
        """Size (bytes) of all parts from the part in which the current request's head began."""
        self._declined: Request | None = None
        """A request whose upgrade offer is ignored."""
        self._head_cache: RequestHeadCache | None = None
        self._misses = 0
        """Number of consecutive requests whose head was not the cached head."""
        self._read = b""
        """The current read, while the parser processes a head at its start; else empty."""
        self._counted_left = 0
        """Number of missing body bytes of a request whose head was found in the cache."""
        self._part: bytes | memoryview = b""
        """The part that is being parsed."""
        self._head_parts: list[bytes] = []
        """The parts with an incomplete head."""
        self._begins_at = 0
        """Offset of the head in its first part."""
        self._chunked_end: ChunkedEnd | None = None
        """Finds the end of the current body; None without a chunked body."""
        self._next_at = 0
        """Offset of the next head in the current part; negative if it is not in this part."""
        self._unparsed = b""
        """Received bytes that are parsed once fewer requests wait."""
        self._parse_due = False
        """Whether the unparsed bytes will be parsed in the next turn of the event loop."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_ip = peer[0] if peer else ""
        if self.listener.secure:
            self.scheme = b"https"
        refusal = self._registry.on_connected(self)
        if refusal is not None:
            self.abort() if self._registry.crowded else self._refuse(refusal, "too many connections")

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._unparsed += data
            return
        if self._mode is REQUESTS:
            if self._counted_left:
                data = self._receive_counted(data)
            elif self._current is None and self._misses < MAX_MISSES:
                data = self._match_cached_head(data)
        if not data:
            return
        if self._mode is not REQUESTS:
            self._receive_non_request(data)
            return
        if len(data) > PARSED_BYTES:
            self._parse(memoryview(data))
        else:
            upgraded_at = self._feed(data)
            if upgraded_at is not None:
                self._parse(self._after_upgrade(memoryview(data)[upgraded_at:]))
        self._read = b""

    def eof_received(self) -> bool | None:
        """Handle a half-close: a disconnect that `connection_lost` follows, except in a tunnel without TLS."""
        if self._mode is TUNNEL and self._receiver is not None:
            self._receiver.on_client_eof()
            return not self.listener.secure
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._unwatch()
        self._registry.on_closed(self)
        for request in (*self._waiting, self._serving, self._current):
            if request is not None and request.accepted_head is not None:
                self._release(request, request.accepted_head)
        self._waiting.clear()
        self._buffered.clear()
        self._unparsed, self._head_parts = b"", []
        self._receiver = None
        handler, self._handler, self._serving, self._current = self._handler, None, None, None
        if handler is not None:
            handler.on_client_gone()

    # httptools callbacks

    def on_message_begin(self) -> None:
        request = self._current = Request()
        self._add_header = request.headers.append
        self._in_head, self._fed_bytes = True, self._read_bytes
        self._head_parts, self._begins_at = [bytes(self._part)], self._next_at
        self._since = self.listener.clock()

    def on_url(self, url: bytes) -> None:
        if self._current is not None:
            self._current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header of the current request. The parser keeps trailing whitespace, which is not part of a value (RFC
        9112, section 5.1)."""
        if self._in_head:
            self._add_header((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._in_head = False
        request, read, self._read = self._current, self._read, b""
        parts, self._head_parts = self._head_parts, []
        if request is None or self._mode is not REQUESTS:
            return
        parser = self._parser
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive()
        head = parts[0] if len(parts) == 1 else b"".join(parts)
        begins_at = skip_empty_lines(head, self._begins_at)
        problem = request_line_problem(request, head, begins_at) or complete_head(
            request, parser.get_http_version(), self.listener.location_header
        )
        before = len(head) - self._read_bytes
        ends_at = head.find(b"\r\n\r\n", begins_at) + 4
        if request.length is not None:
            self._next_at = ends_at + request.length - before
        else:
            self._chunked_end = ChunkedEnd()
            self._next_at = self._chunked_end.find(head, ends_at) - before
        if problem is not None:
            self._refuse(Reason.BAD_REQUEST, problem)
        elif len(request.headers) > self._limits.max_headers or (
            # The exact size is computed only where enough was read to exceed the limit.
            self._fed_bytes > self._limits.max_head_bytes and head_bytes(request) > self._limits.max_head_bytes
        ):
            self._refuse(Reason.HEAD_TOO_LARGE, "the request head is too large")
        elif parser.should_upgrade():
            self._receive_upgrade_offer(request)
        elif not request.plain or (request.length or 0) > SMALL_BODY_BYTES:
            if request.length != 0:
                self._expect_body(request)
        elif raw := raw_head(read, request.method):
            listener = self.listener
            self._head_cache = RequestHeadCache(
                raw, request, listener.to_upstream, listener.location_header, self.scheme
            )

    def on_body(self, chunk: bytes) -> None:
        request = self._current
        if request is None or self._mode is not REQUESTS:
            return
        received_bytes = request.received_bytes = request.received_bytes + len(chunk)
        if received_bytes <= SMALL_BODY_BYTES:
            request.body = chunk if not request.body else joined(request.body, chunk)
        else:
            self._receive_large_body(request, chunk)

    def on_message_complete(self) -> None:
        request = self._current
        if request is not None and request.started and request.body_check is not None and self._mode is REQUESTS:
            problem = request.body_check.finish()
            if problem:
                self._refuse(Reason.BAD_REQUEST, problem)
                return
        self._current = self._chunked_end = None
        self._in_head = True
        if request is not None and self._mode is REQUESTS:
            request.length = request.received_bytes
            self._complete(request)

    def _complete(self, request: Request) -> None:
        """Process a complete request: inform its handler, handle the request, or queue it."""
        request.whole = True
        if request.upgrade:
            self._mode = UPGRADING
        elif not request.keep_alive:
            self._mode = CLOSING
        if request.started:
            if self._serving is request and self._handler is not None:
                self._handler.on_request_end()
            return
        if not request.queued:
            self._waiting.append(request)
        if self._serving is None and self._write_stalled_since is None:
            self._serve_next()
            return
        self._continue_due = False
        if self._too_many_waiting:
            self.pause_reading()

    # repeated heads

    def _match_cached_head(self, data: bytes) -> bytes:
        """Process a request that begins with the cached head; returns the rest of the read, for the parser.

        The parser receives no byte of a request that is processed here, and stays in its state between two messages.
        """
        if self._head_cache is not None:
            found = self._head_cache.match(data)
            if found is not None and found[1] <= self._limits.max_head_bytes:
                request, body_at = found
                length = request.length or 0
                if length <= SMALL_BODY_BYTES:
                    self._misses = 0
                    ends_at = body_at + length
                    if len(data) >= ends_at:
                        request.body, request.received_bytes = data[body_at:ends_at], length
                        self._complete(request)
                        return data[ends_at:]
                    self._current, self._counted_left = request, length
                    self._in_head, self._since = False, self.listener.clock()
                    return self._receive_counted(data[body_at:])
            self._misses += 1
        self._read = data
        return data

    def _receive_counted(self, data: bytes) -> bytes:
        """Process a part of a body delimited by Content-Length, without the parser; returns the data after the body."""
        length, left_bytes = len(data), self._counted_left
        if length < left_bytes:
            self._counted_left -= length
            self.on_body(data)
            return b""
        self._counted_left = 0
        self.on_body(data[:left_bytes])
        self.on_message_complete()
        return data[left_bytes:]

    # upgrades

    def _receive_upgrade_offer(self, request: Request) -> None:
        """Accept an offer of WebSocket. Offers of other protocols are ignored (some clients offer h2c with every
        request), and so are offers in HTTP/1.0 requests (RFC 9110, section 7.8)."""
        protocol = (request.header(b"upgrade") or b"").lower()
        if request.method == b"CONNECT":
            self._refuse(Reason.BAD_REQUEST, "CONNECT is not supported: this is not a forward proxy")
        elif protocol == b"websocket" and request.method == b"GET" and request.length == 0 and not request.http_1_0:
            request.upgrade = protocol
        else:
            self._current, self._declined = None, request

    def _parse(self, rest: memoryview) -> None:
        """Parse a read part by part, as long as few requests wait; the rest is parsed when reading resumes."""
        while len(rest):
            if self._mode is not REQUESTS:
                self._receive_non_request(bytes(rest))
                return
            if self._too_many_waiting:
                self._unparsed = bytes(rest)
                self.pause_reading()
                return
            size = self._part_bytes()
            # A view is not copied. It covers nothing but a body: the head of a request begins in a part of bytes.
            part: bytes | memoryview = rest[:size] if size > CHUNKED_PARSED_BYTES else bytes(rest[:size])
            upgraded_at = self._feed(part)
            rest = rest[size:] if upgraded_at is None else self._after_upgrade(rest[upgraded_at:])

    def _part_bytes(self) -> int:
        """Return the size (bytes) of the part to parse next."""
        request = self._current
        if request is None or self._in_head:
            return PARSED_BYTES
        if request.length is None:
            return CHUNKED_PARSED_BYTES
        left_bytes = request.length - request.received_bytes
        return left_bytes if left_bytes > CHUNKED_PARSED_BYTES else PARSED_BYTES

    def resume_reading(self) -> None:
        """Continue after `pause_reading`, first with the bytes that wait to be parsed.

        They are parsed in the next turn of the event loop, as bytes that had not arrived would be: the caller may be
        the parser, or a handler that is not in place yet.
        """
        if not self._unparsed:
            super().resume_reading()
        elif not self._parse_due:
            self._parse_due = True
            asyncio.get_running_loop().call_soon(self._parse_unparsed)

    def _parse_unparsed(self) -> None:
        self._parse_due = False
        rest, self._unparsed = self._unparsed, b""
        super().resume_reading()
        self._parse(memoryview(rest))

    def _feed(self, data: bytes | memoryview) -> int | None:
        """Parse a part of a read; returns the offset after the head of an upgrade request, or None."""
        self._read_bytes = len(data)
        self._fed_bytes += self._read_bytes
        self._part = data
        if self._current is None:
            self._next_at = 0
        elif self._head_parts:
            self._head_parts.append(bytes(data))
        elif self._chunked_end is not None:
            self._next_at = self._chunked_end.find(bytes(data), 0)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return int(upgrade.args[0])
        except httptools.HttpParserCallbackError:
            # A defect in a callback, not a malformed request: the event loop logs it and closes the connection.
            raise
        except httptools.HttpParserError as error:
            if self._mode is REQUESTS:
                self._refuse(Reason.BAD_REQUEST, f"not a valid HTTP request: {error}")
        else:
            self._part = b""
            self._next_at -= self._read_bytes
            if self._fed_bytes > SMALL_BODY_BYTES:
                self._check_size()
        return None

    def _after_upgrade(self, rest: memoryview) -> memoryview:
        """Process the data after the head of an upgrade request, where the parser stops; returns what is to be parsed.

        A declined request is parsed again without the offer.
        """
        if self._declined is None or self._mode is not REQUESTS:
            self._receive_non_request(bytes(rest))
            return memoryview(b"")
        head, self._declined = without_upgrade(self._declined), None
        self._parser = httptools.HttpRequestParser(self)
        self._feed(head)
        return rest

    def _receive_non_request(self, data: bytes) -> None:
        """Process bytes of a tunnel, or bytes that arrive while an upgrade is undecided; drop any other bytes."""
        if self._mode is TUNNEL:
            if self._receiver is not None:
                self._receiver.on_client_bytes(data)
        elif self._mode is CLOSING:
            self._linger_on()
        elif self._mode is UPGRADING and data:
            self._buffered.append(data)
            self.pause_reading()

    # limits

    def _check_size(self) -> None:
        """Refuse a request with a too large head or chunk framing, because the parser buffers an incomplete header."""
        if self._mode is not REQUESTS or self._current is None:
            return
        if self._in_head:
            if self._fed_bytes > self._limits.max_head_bytes + MAX_READ_BYTES:
                self._refuse(Reason.HEAD_TOO_LARGE, "the request head is too large")
        elif self._current.length is None:
            overhead_bytes = self._fed_bytes - self._read_bytes - 9 * self._current.received_bytes
            if overhead_bytes > self._limits.max_head_bytes + CHUNK_OVERHEAD_BYTES:
                self._refuse(Reason.BAD_REQUEST, "the chunk framing is larger than the body")
