"""One connection from a client: its bytes are parsed into requests, within limits and times, or become a tunnel.

A body is collected before its request is handled, unless it is large: then the request is handled as soon as it is
known what it asks for, and the rest of the body is passed to its handler as it comes. What cannot be parsed, or is over
a limit, is answered in its turn and the connection closed: where the next request begins is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import httptools

from penstock.routing.reasons import Reason
from regional_agent.http.body_buffer import joined
from regional_agent.http.head_cache import MAX_MISSES, raw_head
from regional_agent.http.messages import Header, Request, without_upgrade
from regional_agent.http.request_head import complete_head, head_bytes
from regional_agent.http.request_head_cache import KnownRequest
from regional_agent.http.request_sequence import (
    CONTINUE,
    DEAF,
    REQUESTS,
    SMALL_BODY_BYTES,
    TUNNEL,
    UPGRADING,
    ClientTurns,
)

if TYPE_CHECKING:
    from regional_agent.http.listener import Listener

MAX_READ_BYTES: Final = 256 * 1024
"""What the event loop reads at once; the end of one request and the start of the next may share it."""

MAX_AHEAD: Final = 256
"""Requests of one connection that may wait parsed: reading stops long before, but one read holds many small ones."""

CHUNK_OVERHEAD_BYTES: Final = 16 * 1024
"""Chunk sizes, extensions and trailers of one body may take this much beyond eight times the body."""


class ClientConnection(ClientTurns):
    """Bytes in, requests to the application, answers out."""

    __slots__ = (
        "_declined",
        "_fed_bytes",
        "_in_head",
        "_known",
        "_left_bytes",
        "_misses",
        "_parser",
        "_read",
        "_read_bytes",
        "_take_header",
    )

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._parser = httptools.HttpRequestParser(self)
        self._in_head = True
        self._take_header: Callable[[Header], None] = list[Header]().append
        """Adds one to the headers of the current request."""
        self._read_bytes = 0
        """Size of the read at hand."""
        self._fed_bytes = 0
        """Bytes of the reads that the current request's head began in and came with since."""
        self._declined: Request | None = None
        """A request whose offer to upgrade is passed over."""
        self._known: KnownRequest | None = None
        """The head of an earlier request, by which the next one's is taken if it is the same."""
        self._misses = 0
        """Heads in a row that were not."""
        self._read = b""
        """The read at hand, while a head that begins with it is being parsed."""
        self._left_bytes = 0
        """How much is still to come of the body of a request that was taken so."""

    # timeouts

    def check_timeouts(self, now: float) -> None:
        """Close a connection that sends or takes too slowly, or has nothing to do for too long."""
        limits = self._limits
        if self._stuck_since is not None and now - self._stuck_since > limits.write_stall_timeout_s:
            self.abort()
        elif self._mode is DEAF:
            if self._linger_until is not None and now > self._linger_until:
                assert self._transport is not None
                self.abort() if self._transport.is_closing() else self._close()
        elif self._current is not None and self._reading:
            self._check_receiving(self._current, now)
        elif self._serving is None and not self._waiting:
            self._check_idle(now)

    def _check_receiving(self, request: Request, now: float) -> None:
        waited_s = now - self._since
        if self._in_head:
            if self._serving is None and waited_s > self._limits.head_timeout_s:
                self._refuse(Reason.REQUEST_TIMEOUT, "the request's head did not arrive in time")
            return
        if waited_s > self._allowed_s(request, waited_s):
            self._refuse(Reason.REQUEST_TIMEOUT, "the request's body did not arrive in time")

    def _allowed_s(self, request: Request, waited_s: float) -> float:
        """How long (s) a body may have taken by now: who began fast may not stop for the sake of it."""
        limits = self._limits
        allowed_s, seen_bytes = request.pace or (limits.body_timeout_s, 0)
        earned_s = (request.received_bytes - seen_bytes) / limits.slowest_body_bytes_per_s
        allowed_s = max(allowed_s, min(allowed_s + earned_s, waited_s + limits.stall_timeout_s))
        if not request.started:
            # Nobody has it yet, so it has no other deadline.
            allowed_s = min(allowed_s, limits.request_timeout_s)
        request.pace = allowed_s, request.received_bytes
        return allowed_s

    def _check_idle(self, now: float) -> None:
        idle_s = now - max(self._since, self.listener.draining_since)
        if idle_s > (self._limits.idle_linger_s if self.listener.draining else self._limits.idle_timeout_s):
            self._go_deaf(linger=False)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_ip = peer[0] if peer else ""
        if self.listener.secure:
            self.scheme = b"https"
        refusal = self.listener.joined(self)
        if refusal is not None:
            self.abort() if self.listener.crowded else self._refuse(refusal, "too many connections")

    def data_received(self, data: bytes) -> None:
        if self._mode is REQUESTS:
            if self._left_bytes:
                data = self._take_counted(data)
            elif self._current is None and self._misses < MAX_MISSES:
                data = self._take_known(data)
        if not data:
            return
        if self._mode is not REQUESTS:
            self._take_other(data)
            return
        upgraded_at = self._feed(data)
        if upgraded_at is not None:
            self._after_upgrade(memoryview(data)[upgraded_at:])
        self._read = b""

    def eof_received(self) -> bool | None:
        """A client that closes its sending side has left, and `connection_lost` follows; in a tunnel it has not."""
        if self._mode is TUNNEL and self._receiver is not None:
            self._receiver.on_client_eof()
            return not self.listener.secure
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._watch_no_more()
        self.listener.left(self)
        for request in (*self._waiting, self._serving, self._current):
            if request is not None and request.received_bytes > SMALL_BODY_BYTES:
                self.listener.bodies.let_go(request)
        self._waiting.clear()
        self._ahead.clear()
        self._receiver = None
        handler, self._handler, self._serving, self._current = self._handler, None, None, None
        if handler is not None:
            handler.on_client_gone()

    # httptools callbacks

    def on_message_begin(self) -> None:
        request = self._current = Request()
        self._take_header = request.headers.append
        self._in_head, self._fed_bytes = True, self._read_bytes
        self._since = self.listener.clock()

    def on_url(self, url: bytes) -> None:
        if self._current is not None:
            self._current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._take_header((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        request, read, self._read = self._current, self._read, b""
        if request is None or self._mode is not REQUESTS:
            return
        parser = self._parser
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive()
        problem = complete_head(request, parser.get_http_version())
        if problem is not None:
            self._refuse(Reason.BAD_REQUEST, problem)
        elif len(request.headers) > self._limits.max_headers or (
            # Headers are counted one by one only where so much was read that it matters.
            self._fed_bytes > self._limits.max_head_bytes and head_bytes(request) > self._limits.max_head_bytes
        ):
            self._refuse(Reason.HEAD_TOO_LARGE, "the request head is too large")
        elif parser.should_upgrade():
            self._take_upgrade(request)
        elif not request.plain or (request.length or 0) > SMALL_BODY_BYTES:
            if request.length != 0:
                self._expect_body(request)
        elif raw := raw_head(read, request.method):
            location_header = self.listener.location_header
            self._known = KnownRequest(raw, request, self.listener.names_onward, location_header, self.scheme)

    def on_body(self, chunk: bytes) -> None:
        request = self._current
        if request is None or self._mode is not REQUESTS:
            return
        received_bytes = request.received_bytes = request.received_bytes + len(chunk)
        if received_bytes <= SMALL_BODY_BYTES:
            request.body = chunk if not request.body else joined(request.body, chunk)
        else:
            self._take_large(request, chunk)

    def on_message_complete(self) -> None:
        request, self._current = self._current, None
        self._in_head = True
        if request is not None and self._mode is REQUESTS:
            request.length = request.received_bytes
            self._take_whole(request)

    def _take_whole(self, request: Request) -> None:
        """A request has come to its end: tell who has it, serve it, or let it wait for its turn."""
        request.whole = True
        if request.upgrade:
            self._mode = UPGRADING
        elif not request.keep_alive:
            self._mode = DEAF
        if request.started:
            if self._serving is request and self._handler is not None:
                self._handler.on_request_end()
            return
        if not request.queued:
            self._waiting.append(request)
        if self._serving is None and self._stuck_since is None:
            self._serve_next()
            return
        self._owes_continue = False
        if len(self._waiting) > MAX_AHEAD:
            self._refuse(Reason.BAD_REQUEST, f"more than {MAX_AHEAD} requests at once; wait for answers")
        elif self._far_ahead:
            self.pause_reading()

    # heads that come again

    def _take_known(self, data: bytes) -> bytes:
        """Take a request whose head is known, and as much of its body as is here; returns what is left for the parser.

        The parser has seen nothing of this request, and is between two messages as before.
        """
        if self._known is not None:
            found = self._known.again(data)
            if found is not None and found[1] <= self._limits.max_head_bytes:
                request, body_at = found
                length = request.length or 0
                if length <= SMALL_BODY_BYTES:
                    self._misses = 0
                    ends_at = body_at + length
                    if len(data) >= ends_at:
                        request.body, request.received_bytes = data[body_at:ends_at], length
                        self._take_whole(request)
                        return data[ends_at:]
                    self._current, self._left_bytes = request, length
                    self._in_head, self._since = False, self.listener.clock()
                    return self._take_counted(data[body_at:])
            self._misses += 1
        self._read = data
        return data

    def _take_counted(self, data: bytes) -> bytes:
        """More of a body that is as long as its head said; returns what comes after it."""
        length, left_bytes = len(data), self._left_bytes
        if length < left_bytes:
            self._left_bytes -= length
            self.on_body(data)
            return b""
        self._left_bytes = 0
        self.on_body(data[:left_bytes])
        self.on_message_complete()
        return data[left_bytes:]

    # requests

    def _expect_body(self, request: Request) -> None:
        """A body is on its way: refuse from the head what will not be served, and say `100 Continue` only then."""
        limit = self._limits.max_body_bytes
        if request.length is not None and request.length > limit:
            self._refuse(Reason.BODY_TOO_LARGE, f"the body is larger than {limit} bytes")
            return
        expected = None if request.plain else request.header(b"expect")
        if expected is None and request.length is not None and request.length <= SMALL_BODY_BYTES:
            return
        refusal = self.listener.application.refuse_head(request)
        if refusal is not None:
            self._end_with(refusal)
        elif expected is not None and not request.http_1_0:
            if expected.lower() != b"100-continue":
                self._refuse(Reason.BAD_REQUEST, "the only expectation known here is 100-continue")
            elif self._serving is None:
                self.write(CONTINUE)
            else:
                self._owes_continue = True

    def _take_large(self, request: Request, chunk: bytes) -> None:
        """More of a body above SMALL_BODY_BYTES: keep it, or pass it on where its request is being handled."""
        if request.received_bytes > self._limits.max_body_bytes:
            self._refuse(Reason.BODY_TOO_LARGE, f"the body is larger than {self._limits.max_body_bytes} bytes")
        elif request.started:
            if self._serving is request and self._handler is not None:
                self._handler.on_request_body(chunk)
        elif not self.listener.bodies.may_keep(len(chunk)):
            self._refuse(Reason.SATURATED, "too many large bodies at once")
        else:
            before = len(request.body)
            self.listener.bodies.keep(request, chunk)
            self._start_early(request, before)

    def _start_early(self, request: Request, before_bytes: int) -> None:
        """Handle a request whose body is not whole, once it is known what it asks for or no more may be kept.

        Tried each time that the body has doubled, so that a large one is not searched again and again.
        """
        size = len(request.body)
        full = size >= self._limits.kept_body_bytes
        doubled = before_bytes.bit_length() != size.bit_length()
        if not request.queued and (full or (doubled and self.listener.application.knows_enough(request))):
            request.queued, self._owes_continue = True, False
            self._waiting.append(request)
            if self._serving is None:
                self._serve_next()
        if self._serving is not request and (self._serving is not None or request.queued):
            self.pause_reading()

    def _take_upgrade(self, request: Request) -> None:
        """Only WebSocket is known; any other offer (h2c comes with every request of some clients) is passed over, and
        so are those of HTTP/1.0, which does not know them (RFC 9110, section 7.8)."""
        protocol = (request.header(b"upgrade") or b"").lower()
        if request.method == b"CONNECT":
            self._refuse(Reason.BAD_REQUEST, "this is no forward proxy")
        elif protocol == b"websocket" and request.method == b"GET" and request.length == 0 and not request.http_1_0:
            request.upgrade = protocol
        else:
            self._current, self._declined = None, request

    def _feed(self, data: bytes | memoryview) -> int | None:
        """Parse a read, or what is left of it; where it stopped because the head of an upgrade has ended, or None."""
        self._read_bytes = len(data)
        self._fed_bytes += self._read_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return int(upgrade.args[0])
        except httptools.HttpParserCallbackError:
            # A fault of ours and not the client's: the event loop tells of it, and closes the connection.
            raise
        except httptools.HttpParserError as error:
            if self._mode is REQUESTS:
                self._refuse(Reason.BAD_REQUEST, f"not a valid HTTP request: {error}")
        else:
            if self._fed_bytes > SMALL_BODY_BYTES:
                self._check_size()
        return None

    def _after_upgrade(self, rest: memoryview) -> None:
        """The parser stops after the head of an upgrade. A declined one is parsed again, without the offer.

        A loop, not recursion, and without copies: one read may hold thousands of them.
        """
        upgraded_at: int | None = 0
        while upgraded_at is not None and self._declined is not None and self._mode is REQUESTS:
            head, self._declined = without_upgrade(self._declined), None
            self._parser = httptools.HttpRequestParser(self)
            self._feed(head)
            if self._mode is REQUESTS:
                upgraded_at = self._feed(rest)
                rest = rest[upgraded_at or 0 :]
        if upgraded_at is not None:
            self._take_other(bytes(rest))

    def _take_other(self, data: bytes) -> None:
        """Bytes that are no requests."""
        if self._mode is TUNNEL:
            if self._receiver is not None:
                self._receiver.on_client_bytes(data)
        elif self._mode is UPGRADING and data:
            self._ahead.append(data)
            self.pause_reading()

    # limits and the end

    def _check_size(self) -> None:
        """The parser holds an unfinished header itself, so its growth is bounded here, by what was read for it."""
        if self._mode is not REQUESTS or self._current is None:
            return
        if self._in_head:
            if self._fed_bytes > self._limits.max_head_bytes + MAX_READ_BYTES:
                self._refuse(Reason.HEAD_TOO_LARGE, "the request head is too large")
        elif self._current.length is None:
            overhead_bytes = self._fed_bytes - self._read_bytes - 9 * self._current.received_bytes
            if overhead_bytes > self._limits.max_head_bytes + CHUNK_OVERHEAD_BYTES:
                self._refuse(Reason.BAD_REQUEST, "the body's chunks have more around them than in them")
