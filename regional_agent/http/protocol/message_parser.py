"""The callback object of an httptools parser: collects requests with small bodies, and announces large ones.

The parser checks the syntax of HTTP; `request_head` checks what the parser does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import httptools

from penstock.http.head_template import raw_head
from penstock.http.header_rules import Header, HeaderFilter
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.kept_bodies import joined
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request, RequestHeadCache, without_upgrade
from regional_agent.http.protocol.chunked_end import ChunkedEnd
from regional_agent.http.protocol.received import SMALL_BODY_BYTES, HeadReceived, PartReceived, Received, RequestRefused
from regional_agent.http.protocol.request_head import complete_head, head_bytes, request_line_problem, skip_empty_lines

MAX_READ_BYTES: Final = 256 * 1024
"""Maximum size of one read of the event loop. A read may contain the end of a request and the start of the next one."""

CHUNK_OVERHEAD_BYTES: Final = 16 * 1024
"""Maximum size of the chunk framing, extensions and trailers of a body, in addition to eight times the body's size."""


class MessageParser:
    """Parses one request after another, and adds what is complete to `found`."""

    def __init__(self, limits: Limits, passing: HeaderFilter, location_header: bytes, scheme: bytes) -> None:
        """Start before the first request; see `RequestParser`."""
        self._limits = limits
        self._passing = passing
        self._location_header = location_header
        self._scheme = scheme
        self._http: Any = httptools.HttpRequestParser(self)
        self.found: list[Received] = []
        self.is_over = False
        """Whether nothing more is parsed: the bytes after the last element of `found` are invalid, or of another
        protocol."""
        self.request: Request | None = None
        """The request of which a part was parsed."""
        self.in_head = True
        """Whether the head of that request is incomplete."""
        self.body_bytes = 0
        """Size (bytes) of the body of that request, as far as it was parsed."""
        self.read = b""
        """The read that begins with the head that is parsed next, by which the head can be cached; empty otherwise."""
        self.head_cache: RequestHeadCache | None = None
        self._add_header: Callable[[Header], None] = list[Header]().append
        """Appends to the headers of the current request."""
        self._part: bytes | memoryview = b""
        """The part that is being parsed."""
        self._part_bytes = 0
        """Size (bytes) of that part."""
        self._fed_bytes = 0
        """Size (bytes) of all parts from the part in which the current request's head began."""
        self._head_parts: list[bytes] = []
        """The parts with an incomplete head."""
        self._begins_at = 0
        """Offset of the head in its first part."""
        self._next_at = 0
        """Offset of the next head in the current part; negative if it is not in this part."""
        self._chunked_end: ChunkedEnd | None = None
        """Finds the end of the current body; None without a chunked body."""
        self._declined: Request | None = None
        """A request whose upgrade offer is ignored."""

    def feed(self, part: bytes | memoryview) -> int:
        """Parse a part of what was received; returns how much was used (bytes): less than all after an upgrade offer.

        Args:
            part: bytes if it may contain a head.
        """
        size = self._part_bytes = len(part)
        self._fed_bytes += size
        self._part = part
        if self.request is None:
            self._next_at = 0
        elif self._head_parts:
            self._head_parts.append(bytes(part))
        elif self._chunked_end is not None:
            self._next_at = self._chunked_end.find(bytes(part), 0)
        try:
            self._http.feed_data(part)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade()
            return int(upgrade.args[0])
        except httptools.HttpParserCallbackError:
            # A defect in a callback, not a malformed request: the event loop logs it and closes the connection.
            raise
        except httptools.HttpParserError as error:
            self._reject(Reason.BAD_REQUEST, f"not a valid HTTP request: {error}")
        else:
            self._part = b""
            self._next_at -= size
            if self._fed_bytes > SMALL_BODY_BYTES:
                self._check_size()
        return size

    def stop(self) -> None:
        """Forget what was parsed, and parse nothing more."""
        # The httptools parser refers to this object, which would otherwise wait for the cyclic garbage collector.
        self._http = self.request = None
        self.is_over = True
        self.found, self._head_parts = [], []

    def _after_upgrade(self) -> None:
        """Parse a declined request again, without its offer. The parser has stopped after its head."""
        if self._declined is None:
            self.is_over = True
            return
        head, self._declined = without_upgrade(self._declined), None
        self._http = httptools.HttpRequestParser(self)
        self.feed(head)

    def _check_size(self) -> None:
        """Reject a request with a too large head or chunk framing, because the parser buffers an incomplete header."""
        if self.request is None:
            return
        if self.in_head:
            if self._fed_bytes > self._limits.max_head_bytes + MAX_READ_BYTES:
                self._reject(Reason.HEAD_TOO_LARGE, "the request head is too large")
        elif self.request.length is None:
            overhead_bytes = self._fed_bytes - self._part_bytes - 9 * self.body_bytes
            if overhead_bytes > self._limits.max_head_bytes + CHUNK_OVERHEAD_BYTES:
                self._reject(Reason.BAD_REQUEST, "the chunk framing is larger than the body")

    def _reject(self, reason: Reason, detail: str) -> None:
        if not self.is_over:
            self.is_over = True
            self.found.append(RequestRefused(Refusal(reason, detail), self.request))

    # httptools callbacks

    def on_message_begin(self) -> None:
        request = self.request = Request()
        self._add_header = request.headers.append
        self.in_head, self._fed_bytes, self.body_bytes = True, self._part_bytes, 0
        self._head_parts, self._begins_at = [bytes(self._part)], self._next_at

    def on_url(self, url: bytes) -> None:
        if self.request is not None:
            self.request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header of the current request. The parser keeps trailing whitespace, which is not part of a value (RFC
        9112, section 5.1)."""
        if self.in_head:
            self._add_header((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.in_head = False
        request, read, self.read = self.request, self.read, b""
        parts, self._head_parts = self._head_parts, []
        if request is None or self.is_over:
            return
        parser = self._http
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive()
        head = parts[0] if len(parts) == 1 else b"".join(parts)
        begins_at = skip_empty_lines(head, self._begins_at)
        problem = request_line_problem(request, head, begins_at) or complete_head(
            request, parser.get_http_version(), self._location_header
        )
        before = len(head) - self._part_bytes
        ends_at = head.find(b"\r\n\r\n", begins_at) + 4
        if request.length is not None:
            self._next_at = ends_at + request.length - before
        else:
            self._chunked_end = ChunkedEnd()
            self._next_at = self._chunked_end.find(head, ends_at) - before
        if problem is not None:
            self._reject(Reason.BAD_REQUEST, problem)
        elif len(request.headers) > self._limits.max_headers or (
            # The exact size is computed only where enough was read to exceed the limit.
            self._fed_bytes > self._limits.max_head_bytes and head_bytes(request) > self._limits.max_head_bytes
        ):
            self._reject(Reason.HEAD_TOO_LARGE, "the request head is too large")
        elif parser.should_upgrade():
            self._receive_upgrade_offer(request)
        elif not request.plain or (request.length or 0) > SMALL_BODY_BYTES:
            if request.length != 0:
                self._announce(request)
        elif raw := raw_head(read, request.method):
            self.head_cache = RequestHeadCache(raw, request, self._passing, self._location_header, self._scheme)

    def _receive_upgrade_offer(self, request: Request) -> None:
        """Accept an offer of WebSocket. Offers of other protocols are ignored (some clients offer h2c with every
        request), and so are offers in HTTP/1.0 requests (RFC 9110, section 7.8)."""
        protocol = (request.header(b"upgrade") or b"").lower()
        if request.method == b"CONNECT":
            self._reject(Reason.BAD_REQUEST, "CONNECT is not supported: this is not a forward proxy")
        elif protocol == b"websocket" and request.method == b"GET" and request.length == 0 and not request.http_1_0:
            request.upgrade = protocol
        else:
            self.request, self._declined = None, request

    def _announce(self, request: Request) -> None:
        """Return the head from `next`, unless the body is small and the client does not wait before it sends it."""
        if request.length is None or request.length > SMALL_BODY_BYTES or request.header(b"expect") is not None:
            self.found.append(HeadReceived(request))

    def on_body(self, chunk: bytes) -> None:
        request = self.request
        if request is None or self.is_over:
            return
        received_bytes = self.body_bytes = self.body_bytes + len(chunk)
        if received_bytes <= SMALL_BODY_BYTES:
            request.body = chunk if not request.body else joined(request.body, chunk)
            request.received_bytes = received_bytes
        else:
            self.found.append(PartReceived(request, chunk))

    def on_message_complete(self) -> None:
        request = self.request
        self.request = self._chunked_end = None
        self.in_head = True
        if request is not None and not self.is_over:
            self.found.append(request)
