"""One connection from a client: parse requests, give them one at a time to an application, write what it answers.

Requests are answered strictly in order; later ones wait parsed. A body is collected before its request is handled,
unless it is large: then the request is handled as soon as it is known what it asks for, and the rest of the body is
passed to its handler as it comes. What cannot be parsed, or is over a limit, is answered in its turn and the
connection closed: where the next request begins is unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from penstock.reasons import Reason, Refusal
from regional_agent.carry.messages import Header, Request, response_head, without_upgrade
from regional_agent.carry.request_head import complete_head

if TYPE_CHECKING:
    from regional_agent.carry.listener import Listener

SMALL_BODY_BYTES = 64 * 1024
"""A body above this is looked at before it is whole, and counts towards `Limits.most_kept_bytes`."""

LARGEST_READ_BYTES = 256 * 1024
"""What the event loop reads at once; the end of one request and the start of the next may share it."""

LINGER_S = 2.0
"""After a refusal, what the client still sends is read and dropped for this long (s): closing at once would reset the
connection, and the client might never read why."""

CHUNK_OVERHEAD_BYTES = 16 * 1024
"""Chunk sizes, extensions and trailers of one body may take this much beyond eight times the body."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Handler(Protocol):
    """What is at work on a request and must hear how its client fares."""

    def on_client_gone(self) -> None: ...
    def on_client_writable(self, writable: bool) -> None: ...
    def on_request_body(self, chunk: bytes) -> None:
        """More of a body that was not whole when its request was handled."""

    def on_request_end(self) -> None:
        """The end of such a body."""


class Receiver(Protocol):
    """Who takes the bytes of a connection that has become a tunnel."""

    def on_client_bytes(self, data: bytes) -> None: ...
    def on_client_eof(self) -> None: ...


class Mode(Enum):
    """What bytes from the client are. A connection only goes down this list."""

    REQUESTS = auto()
    UPGRADING = auto()
    """An upgrade was asked for and is not answered yet: bytes wait."""
    TUNNEL = auto()
    DEAF = auto()
    """They are dropped: an answer that ends the connection has been, or will be, written."""


_REQUESTS, _UPGRADING, _TUNNEL, _DEAF = Mode
"""In Python 3.11, to read a member off its class is a function call."""


class ClientConnection(asyncio.Protocol):
    """Bytes in, requests to the application, answers out."""

    __slots__ = (
        "_ahead",
        "_current",
        "_declined",
        "_fed_bytes",
        "_handler",
        "_in_head",
        "_last_words",
        "_limits",
        "_linger_until",
        "_listener",
        "_mode",
        "_owes_continue",
        "_parser",
        "_pumping",
        "_read_bytes",
        "_reading",
        "_receiver",
        "_serving",
        "_since",
        "_stopped_reading_at",
        "_stuck_since",
        "_take_header",
        "_transport",
        "_waiting",
        "peer_ip",
        "scheme",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._mode = _REQUESTS
        self._current: Request | None = None
        """The request that is being received."""
        self._in_head = True
        self._take_header: Callable[[Header], None] = list[Header]().append
        """Adds one to the headers of the current request."""
        self._read_bytes = 0
        """Size of the read at hand."""
        self._fed_bytes = 0
        """Bytes of the reads that the current request's head began in and came with since."""
        self._serving: Request | None = None
        """The request that is being answered."""
        self._waiting: deque[Request] = deque()
        self._handler: Handler | None = None
        self._receiver: Receiver | None = None
        self._ahead: list[bytes] = []
        """What came while an upgrade was being decided."""
        self._declined: Request | None = None
        """A request whose offer to upgrade is passed over."""
        self._last_words: Refusal | None = None
        self._owes_continue = False
        self._reading = True
        self._stopped_reading_at = 0.0
        self._pumping = False
        self._since = listener.clock()
        """When what is being waited for began: a head, a body, or nothing at all."""
        self._stuck_since: float | None = None
        """Since when the client has taken nothing of what is written."""
        self._linger_until: float | None = None
        self.peer_ip = ""
        self.scheme = b"http"

    # what handlers use

    def write(self, data: bytes) -> None:
        """Send bytes to the client, if it is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def respond(self, status: int, headers: list[bytes], body: bytes) -> None:
        """Answer the current request whole."""
        request = self._serving
        lines = [*headers, b"content-length: %d\r\n" % len(body)]
        keep_alive = (
            request is not None
            and request.keep_alive
            and request.whole
            and not request.upgrade
            and not self._listener.draining
        )
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        head_only = request is not None and request.method == b"HEAD"
        self.write(response_head(status, lines) + (b"" if head_only else body))
        self.finished(keep_alive=keep_alive)

    def finished(self, *, keep_alive: bool) -> None:
        """The current request has been answered; go on with the next, or close.

        A client that was not told of a close (the drain began after the answer did) may be sending already.
        """
        request, self._serving, self._handler = self._serving, None, None
        self._since = self._listener.clock()
        if request is not None and request.received_bytes > SMALL_BODY_BYTES:
            self._listener.let_go(request)
        if request is None or not keep_alive or not request.keep_alive:
            self._go_deaf(linger=request is not None and not request.whole)
        elif self._waiting or self._last_words is not None or self._owes_continue or not self._reading:
            self._serve_next()

    def abort(self) -> None:
        """Close at once: the client sees a broken response, not a short one that looks whole."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def draining(self) -> bool:
        """Whether the listener is going away, so that responses should say so."""
        return self._listener.draining

    @property
    def trusted(self) -> bool:
        """Whether the other side is a proxy of ours, believed about who asked."""
        return self._listener.trusts(self.peer_ip)

    def keep(self, request: Request, chunk: bytes, *, at_any_rate: bool = False) -> bool:
        """Keep more of a request's body for another attempt; False, and nothing kept, where it does not fit.

        Args:
            at_any_rate: nobody has the body yet. Reading is paused then, so what is left of one read must fit.
        """
        fits = len(request.body) + len(chunk) <= self._limits.kept_body_bytes and self._listener.may_keep(len(chunk))
        if not fits and not at_any_rate:
            return False
        self._keep(request, chunk)
        return True

    def forget(self, request: Request) -> None:
        """Drop what is kept of a body whose beginning has been passed on: it cannot be sent again."""
        self._listener.let_go(request)
        request.body, request.forgotten = b"", True

    def pause_reading(self) -> None:
        """Take no more bytes in."""
        if self._reading and self._transport is not None:
            self._transport.pause_reading()
            self._reading, self._stopped_reading_at = False, self._listener.clock()

    def resume_reading(self) -> None:
        """Go on after `pause_reading`; the pause is not counted as the client's time."""
        if not self._reading and self._transport is not None:
            self._transport.resume_reading()
            self._reading = True
            self._since += self._listener.clock() - self._stopped_reading_at

    def tunnel_to(self, receiver: Receiver) -> None:
        """From here on bytes are no requests any more: give them to `receiver` as they are."""
        self._mode, self._receiver = _TUNNEL, receiver
        ahead, self._ahead = self._ahead, []
        for data in ahead:
            receiver.on_client_bytes(data)
        self.resume_reading()

    def write_eof(self) -> None:
        """Say that nothing more will be written; where the transport cannot (TLS), close."""
        if self._transport is not None:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    # timeouts

    def check_timeouts(self, now: float) -> None:
        """Close a connection that sends or takes too slowly, or has nothing to do for too long."""
        limits = self._limits
        if self._stuck_since is not None and now - self._stuck_since > limits.write_stall_timeout_s:
            self.abort()
        elif self._mode is _DEAF:
            if self._linger_until is not None and now > self._linger_until:
                assert self._transport is not None
                self.abort() if self._transport.is_closing() else self._close()
        elif self._current is not None and self._reading:
            self._check_receiving(self._current, now)
        elif self._serving is None:
            self._check_idle(now)

    def _check_receiving(self, request: Request, now: float) -> None:
        waited_s = now - self._since
        if self._in_head:
            if self._serving is None and waited_s > self._limits.head_timeout_s:
                self._refuse(Reason.REQUEST_TIMEOUT, "the request's head did not arrive in time")
            return
        allowed_s = self._limits.body_timeout_s + request.received_bytes / self._limits.slowest_body_bytes_per_s
        if waited_s > allowed_s:
            if request.started:
                self.abort()
            else:
                self._refuse(Reason.REQUEST_TIMEOUT, "the request's body did not arrive in time")

    def _check_idle(self, now: float) -> None:
        idle_s = now - max(self._since, self._listener.draining_since)
        if idle_s > (self._limits.idle_linger_s if self._listener.draining else self._limits.idle_timeout_s):
            self._go_deaf(linger=False)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_ip = peer[0] if peer else ""
        if self._listener.secure:
            self.scheme = b"https"
        refusal = self._listener.joined(self)
        if refusal is not None:
            self._refuse(refusal, "too many connections")

    def data_received(self, data: bytes) -> None:
        if self._mode is not _REQUESTS:
            self._take_other(data)
            return
        self._read_bytes = len(data)
        self._fed_bytes += self._read_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if self._mode is _REQUESTS:
                self._refuse(Reason.BAD_REQUEST, f"not a valid HTTP request: {error}")
        else:
            if self._fed_bytes > SMALL_BODY_BYTES:
                self._check_size()

    def eof_received(self) -> bool | None:
        """A client that closes its sending side has left, and `connection_lost` follows; in a tunnel it has not."""
        if self._mode is _TUNNEL and self._receiver is not None:
            self._receiver.on_client_eof()
            return not self._listener.secure
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.left(self)
        for request in (*self._waiting, self._serving, self._current):
            if request is not None and request.received_bytes > SMALL_BODY_BYTES:
                self._listener.let_go(request)
        self._waiting.clear()
        self._ahead.clear()
        self._receiver = None
        handler, self._handler, self._serving, self._current = self._handler, None, None, None
        if handler is not None:
            handler.on_client_gone()

    def pause_writing(self) -> None:
        self._stuck_since = self._listener.clock()
        if self._handler is not None:
            self._handler.on_client_writable(False)

    def resume_writing(self) -> None:
        self._stuck_since = None
        if self._handler is not None:
            self._handler.on_client_writable(True)

    # httptools callbacks

    def on_message_begin(self) -> None:
        request = self._current = Request()
        self._take_header = request.headers.append
        self._in_head, self._fed_bytes = True, self._read_bytes
        if self._serving is None:
            self._since = self._listener.clock()

    def on_url(self, url: bytes) -> None:
        if self._current is not None:
            self._current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._take_header((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        request = self._current
        if request is None or self._mode is not _REQUESTS:
            return
        parser = self._parser
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive()
        problem = complete_head(request, parser.get_http_version())
        if problem is not None:
            self._refuse(Reason.BAD_REQUEST, problem)
        elif (
            self._fed_bytes > self._limits.largest_head_bytes or len(request.headers) > self._limits.most_headers
        ) and self._is_too_large(request):
            self._refuse(Reason.HEAD_TOO_LARGE, "the request head is too large")
        elif parser.should_upgrade():
            self._take_upgrade(request)
        elif request.length != 0 and not (request.plain and 0 < (request.length or 0) <= SMALL_BODY_BYTES):
            self._expect_body(request)

    def on_body(self, chunk: bytes) -> None:
        request = self._current
        if request is None or self._mode is not _REQUESTS:
            return
        received_bytes = request.received_bytes = request.received_bytes + len(chunk)
        if received_bytes <= SMALL_BODY_BYTES:
            request.body = chunk if not request.body else _joined(request.body, chunk)
        else:
            self._take_large(request, chunk)

    def on_message_complete(self) -> None:
        request, self._current = self._current, None
        self._in_head = True
        if request is None or self._mode is not _REQUESTS:
            return
        request.whole = True
        request.length = request.received_bytes
        if request.upgrade:
            self._mode = _UPGRADING
        elif not request.keep_alive:
            self._mode = _DEAF
        if request.started:
            if self._serving is request and self._handler is not None:
                self._handler.on_request_end()
            return
        if not request.queued:
            self._waiting.append(request)
        if self._serving is None:
            self._serve_next()
        elif len(self._waiting) >= self._limits.most_pipelined:
            self.pause_reading()

    # requests

    def _expect_body(self, request: Request) -> None:
        """A body is on its way: refuse from the head what will not be served, and say `100 Continue` only then."""
        limit = self._limits.largest_body_bytes
        if request.length is not None and request.length > limit:
            self._refuse(Reason.BODY_TOO_LARGE, f"the body is larger than {limit} bytes")
            return
        expected = None if request.plain else request.header(b"expect")
        if expected is None and request.length is not None and request.length <= SMALL_BODY_BYTES:
            return
        refusal = self._listener.application.refuse_head(request)
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
        if request.received_bytes > self._limits.largest_body_bytes:
            if request.started:
                self.abort()
            else:
                self._refuse(Reason.BODY_TOO_LARGE, f"the body is larger than {self._limits.largest_body_bytes} bytes")
        elif request.started:
            if self._serving is request and self._handler is not None:
                self._handler.on_request_body(chunk)
        elif not self._listener.may_keep(len(chunk)):
            self._refuse(Reason.SATURATED, "too many large bodies at once")
        else:
            before = len(request.body)
            self._keep(request, chunk)
            self._start_early(request, before)

    def _start_early(self, request: Request, before_bytes: int) -> None:
        """Handle a request whose body is not whole, once it is known what it asks for or no more may be kept.

        Tried each time that the body has doubled, so that a large one is not searched again and again.
        """
        size = len(request.body)
        full = size >= self._limits.kept_body_bytes
        doubled = before_bytes.bit_length() != size.bit_length()
        if not request.queued and (full or (doubled and self._listener.application.knows_enough(request))):
            request.queued = True
            self._waiting.append(request)
            if self._serving is None:
                self._serve_next()
        if self._serving is not None and self._serving is not request:
            self.pause_reading()

    def _serve_next(self) -> None:
        """Answer waiting requests until one needs time. A loop, not recursion: answers may be immediate."""
        if self._pumping:
            return
        self._pumping = True
        handle = self._listener.application.handle
        while self._serving is None and self._waiting and self._transport is not None:
            request = self._waiting.popleft()
            self._serving = request
            request.started = True
            handler = handle(request, self)
            if self._serving is request:
                self._handler = handler
        self._pumping = False
        if self._serving is None:
            if self._last_words is not None:
                self._say_last_words(self._last_words)
            elif self._owes_continue:
                self._owes_continue = False
                self.write(CONTINUE)
        if not self._reading and self._mode is _REQUESTS and len(self._waiting) < self._limits.most_pipelined:
            self._resume_unless_uploading()

    def _resume_unless_uploading(self) -> None:
        """An upload that is being handled paces its reading itself."""
        if self._serving is None or self._serving.whole:
            self.resume_reading()

    def _take_upgrade(self, request: Request) -> None:
        """Only WebSocket is known; any other offer (h2c comes with every request of some clients) is passed over."""
        protocol = (request.header(b"upgrade") or b"").lower()
        if request.method == b"CONNECT":
            self._refuse(Reason.BAD_REQUEST, "this is no forward proxy")
        elif protocol == b"websocket" and request.method == b"GET" and request.length == 0:
            request.upgrade = protocol
        else:
            self._current, self._declined = None, request

    def _after_upgrade(self, rest: bytes) -> None:
        """The parser stops after the head of an upgrade. A declined one is parsed again, without the offer."""
        declined, self._declined = self._declined, None
        if declined is not None and self._mode is _REQUESTS:
            self._parser = httptools.HttpRequestParser(self)
            self.data_received(without_upgrade(declined) + rest)
        else:
            self._take_other(rest)

    def _take_other(self, data: bytes) -> None:
        """Bytes that are no requests."""
        if self._mode is _TUNNEL:
            if self._receiver is not None:
                self._receiver.on_client_bytes(data)
        elif self._mode is _UPGRADING and data:
            self._ahead.append(data)
            self.pause_reading()

    # limits and the end

    def _is_too_large(self, request: Request) -> bool:
        """Headers are counted one by one only where so much was read that it matters."""
        limits = self._limits
        if len(request.headers) > limits.most_headers:
            return True
        if self._fed_bytes <= limits.largest_head_bytes:
            return False
        head_bytes = len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
        return head_bytes > limits.largest_head_bytes

    def _check_size(self) -> None:
        """The parser holds an unfinished header itself, so its growth is bounded here, by what was read for it."""
        if self._mode is not _REQUESTS or self._current is None:
            return
        if self._in_head:
            if self._fed_bytes > self._limits.largest_head_bytes + LARGEST_READ_BYTES:
                self._refuse(Reason.HEAD_TOO_LARGE, "the request head is too large")
        elif self._current.length is None:
            overhead_bytes = self._fed_bytes - self._read_bytes - 9 * self._current.received_bytes
            if overhead_bytes > self._limits.largest_head_bytes + CHUNK_OVERHEAD_BYTES:
                if self._current.started:
                    self.abort()
                else:
                    self._refuse(Reason.BAD_REQUEST, "the body's chunks have more around them than in them")

    def _keep(self, request: Request, chunk: bytes) -> None:
        request.body = chunk if not request.body else _joined(request.body, chunk)
        request.kept_bytes += len(chunk)
        self._listener.kept_bytes += len(chunk)

    def _refuse(self, reason: Reason, detail: str) -> None:
        self._end_with(Refusal(reason, detail, retry_after_s=1.0 if reason in _LATER else None))

    def _end_with(self, refusal: Refusal) -> None:
        """The last answer on this connection, in its turn; an upload in progress has nothing to answer with."""
        self._mode = _DEAF
        current, self._current = self._current, None
        if current is not None and current.received_bytes > SMALL_BODY_BYTES:
            self._listener.let_go(current)
        if current is not None and current.started:
            self.abort()
            return
        if current is not None and current.queued:
            self._waiting.remove(current)
        self._last_words = refusal
        if self._serving is None and not self._pumping:
            self._say_last_words(refusal)

    def _say_last_words(self, refusal: Refusal) -> None:
        self._last_words = None
        status, lines, body = self._listener.application.refuse(refusal)
        lines += [b"content-length: %d\r\n" % len(body), b"connection: close\r\n"]
        self.write(response_head(status, lines) + body)
        self._go_deaf(linger=True)

    def _go_deaf(self, *, linger: bool) -> None:
        """Close once what was written has been sent; after that or LINGER_S, whichever comes first."""
        self._mode = _DEAF
        for request in self._waiting:
            self._listener.let_go(request)
        self._waiting.clear()
        if self._transport is None:
            return
        if linger:
            self._linger_until = self._listener.clock() + LINGER_S
            self.resume_reading()
            if self._transport.can_write_eof():
                self._transport.write_eof()
        else:
            self._close()

    def _close(self) -> None:
        """Close when everything is written, which a client that does not read cannot put off for ever."""
        if self._transport is not None:
            self._linger_until = self._listener.clock() + self._limits.write_stall_timeout_s
            self._transport.close()


_LATER = frozenset({Reason.SATURATED, Reason.TOO_MANY_CONNECTIONS})


def _joined(body: bytes | bytearray, chunk: bytes) -> bytearray:
    """A body with more of it; what has been joined before grows in place."""
    if isinstance(body, bytearray):
        body += chunk
        return body
    return bytearray(body) + chunk
