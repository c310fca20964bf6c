"""An HTTP request as parsed, the cache of its head, and the writing of message heads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from math import inf
from secrets import token_hex
from typing import TYPE_CHECKING, Final, Protocol

from penstock.answers.content_decoder import decoded_codings
from penstock.http.head_template import HeadTemplate
from penstock.http.header_rules import (
    NOT_FOR_ENGINES,
    REQUEST_ID_HEADER,
    SPECIAL_HEADERS,
    Header,
    HeaderFilter,
)

if TYPE_CHECKING:
    from penstock.routes.route import Route
    from penstock.routes.route_reader import RouteReader
    from penstock.tenancy.budget_reservations import BudgetReservation


class _StatusLines(dict[int, bytes]):
    """The first lines of responses, by status."""

    def __missing__(self, status: int) -> bytes:
        return b"HTTP/1.1 %d \r\n" % status


STATUS_LINES: Final = _StatusLines(
    {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}
)

NOT_MODIFIED: Final = 304
"""The status of a response without a body, whose Content-Length would be that of the omitted body."""

KEEP_ALIVE_1_0: Final = b"connection: keep-alive\r\n"
"""Header line for HTTP/1.0 clients, which otherwise wait for the close of the connection as the response's end."""

PERMITTED_LINE: Final = b"access-control-allow-origin: "
"""Begins `Request.cors_lines` if a page of the request's origin may read the response."""

_ACCEPT_ENCODING: Final = b"accept-encoding"
_REQUEST_ID_LINE: Final = REQUEST_ID_HEADER + b": "
_SAFE_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

VARYING_REQUEST_HEADERS: Final = frozenset(
    {b"authorization", b"content-length", b"traceparent", b"x-forwarded-for", b"x-request-id"},
)
"""Request headers whose value may differ. Each is read by name, and none is sent upstream as received."""

assert VARYING_REQUEST_HEADERS <= NOT_FOR_ENGINES

_NO_PARAMETERS: Final[Mapping[str, str]] = {}


class BodyCheck(Protocol):
    """Checks a body whose request is handled before the body is complete."""

    def feed(self, chunk: bytes) -> str:
        """Check a further part, before it is forwarded; returns the problem, or an empty string."""

    def finish(self) -> str:
        """Check the end of the body; returns the problem, or an empty string."""


class AcceptedHead:
    """The state of a request with a large body whose head was accepted, before the body is complete."""

    def __init__(self, tenant: str, reservation: BudgetReservation | None = None) -> None:
        self.tenant = tenant
        """The tenant that the memory of the body counts for."""
        self.reservation = reservation
        """What the request reserved of budgets. Cleared when the request context takes over."""


class Request:
    """One request: the parsed head, header names in lower case, and the body without chunk framing."""

    def __init__(self, like: Request | None = None) -> None:
        """Start an empty request, or one with the head of another request."""
        if like is None:
            self.method = b""
            self.target = b""
            """Path and query, without the scheme and authority of an absolute target."""
            self.path = b""
            self.authority = b""
            """Authority of the target, or the Host header."""
            self.headers: list[Header] = []
            self.by_name: dict[bytes, bytes] = {}
            """The last value of each header, once `index` has been called."""
            self.repeats = True
            """Whether a header occurs more than once."""
            self.length: int | None = None
            """Content-Length (bytes); None for a chunked body until it is complete."""
            self.keep_alive = True
            self.http_1_0 = False
            self.plain = False
            """Whether none of SPECIAL_HEADERS is present."""
            self.upgrade = b""
            """Protocol that the client asks to upgrade to, in lower case."""
            self.cors_lines = b""
            """Header lines of any response to the request, which say whether a page of its origin may read it."""
            self.upstream_lines = b""
            """Cached result of `request_lines_to_upstream`, empty where not cached."""
        else:
            self.method = like.method
            self.target = like.target
            self.path = like.path
            self.authority = like.authority
            self.headers = like.headers
            self.by_name = like.by_name
            self.repeats = like.repeats
            self.length = like.length
            self.keep_alive = like.keep_alive
            self.http_1_0 = like.http_1_0
            self.plain = like.plain
            self.upgrade = like.upgrade
            self.cors_lines = like.cors_lines
            self.upstream_lines = like.upstream_lines
        self.route: Route | None = None
        """The route under the policy in force; None before it is looked up."""
        self.reader: RouteReader | None = None
        """Reads requests of the route; None if requests have the fields of the OpenAI API."""
        self.path_parameters: Mapping[str, str] = _NO_PARAMETERS
        """Values of the parameters in the path template of the route."""
        self.body: bytes | bytearray = b""
        """The received part of the body that is kept in case the request must be sent again."""
        self.received_bytes = 0
        self.accepted_head: AcceptedHead | None = None
        """Set when the head of a request with a large body was accepted."""
        self.pace: tuple[float, int] | None = None
        """The last computed time (s) that the body may take, and its size (bytes) at that time; None before that."""
        self.needs_whole = False
        """Whether the request is handled only when its body is complete, however large."""
        self.whole = False
        """Whether the body is complete."""
        self.may_keep_alive = False
        """Whether the client may send another request after the response, if the agent does not drain: once the
        request is complete, unless it is the last one or offers an upgrade."""
        self.may_wait = False
        """Whether the request can wait for a lease of a budget."""
        self.waits_until = inf
        """Monotonic time (s) until which it waits; inf before it waits."""
        self.kept_bytes = 0
        """The part of `body` that counts towards `Limits.max_kept_bytes`."""
        self.queued = False
        """Whether the request is queued for handling before its body is complete."""
        self.started = False
        """Whether the application has received the request."""
        self.body_check: BodyCheck | None = None
        """Checks the further parts of the body, once the request has started."""
        self.body_dropped = False
        """Whether a part of the body was sent on without being kept, so that the request cannot be sent again."""

    @property
    def is_of_permitted_origin(self) -> bool:
        """Whether a page of the request's origin may read the response."""
        return self.cors_lines.startswith(PERMITTED_LINE)

    def header(self, name: bytes) -> bytes | None:
        """Return a header's value, or None; the last value of a repeated header."""
        return (self.by_name or self.index()).get(name)

    def every(self, name: bytes) -> list[bytes]:
        """Return all values of a header, in order."""
        value = self.header(name)
        if value is None:
            return []
        return [value for key, value in self.headers if key == name] if self.repeats else [value]

    def index(self) -> dict[bytes, bytes]:
        """Index the headers by name. Call when all headers have been added."""
        by_name = self.by_name = dict(self.headers)
        self.repeats = len(by_name) != len(self.headers)
        self.plain = SPECIAL_HEADERS.isdisjoint(by_name)
        return by_name


class RequestHeadCache:
    """The last accepted request head of a connection. Only for plain requests with a Content-Length, or no body."""

    def __init__(
        self, raw: bytes, request: Request, passing: HeaderFilter, location_header: bytes, scheme: bytes
    ) -> None:
        """Cache a head.

        Args:
            raw: the head as received.
            request: the result of parsing it.
            passing: filter of the headers that are sent upstream.
            location_header: name of the client location header, whose value may differ; empty if none is configured.
            scheme: scheme of the connection.
        """
        assert request.plain
        self._template = HeadTemplate(raw, request.headers, VARYING_REQUEST_HEADERS | {location_header})
        # A copy, since a model rewrite replaces the body of the current request, and its length.
        self._like = Request(request)
        self._like.upstream_lines = request_lines_to_upstream(request, passing, scheme, request.authority)

    def match(self, data: bytes) -> tuple[Request, int] | None:
        """Return the request whose head is at the start of `data`, and its body's offset; None for another head."""
        raw = self._template.raw
        if data.startswith(raw):
            return Request(self._like), len(raw)
        found = self._template.match(data)
        if found is None:
            return None
        request = Request(self._like)
        request.headers, request.by_name, body_at = found
        request.length = int(request.by_name.get(b"content-length") or 0)
        return request, body_at


def request_lines_to_upstream(
    request: Request, passing: HeaderFilter, proto: bytes, host: bytes, *, keep_trace_state: bool = True
) -> bytes:
    """Return the header lines of a request for an engine or a peer, X-Forwarded-Proto and -Host included.

    No coding is accepted that the agent cannot decode, since it reads responses. The headers that Connection names were
    removed when the head was received (`request_head.complete_head`).

    Args:
        passing: filter of the headers that pass.
        proto: scheme that the client used.
        host: authority that the client used; empty if the client sent none.
        keep_trace_state: whether `tracestate` passes, which belongs to the trace of `traceparent`.
    """
    headers = request.headers
    if request.is_of_permitted_origin:
        headers = [header for header in headers if header[0] != b"origin"]
    if not request.plain and not keep_trace_state and request.header(b"tracestate") is not None:
        headers = [header for header in headers if header[0] != b"tracestate"]
    if request.header(_ACCEPT_ENCODING) is not None:
        headers = [
            (name, decoded_codings(value)) if name == _ACCEPT_ENCODING else (name, value) for name, value in headers
        ]
    forwarded = b"x-forwarded-proto: %b\r\n" % proto
    if host:
        forwarded += b"x-forwarded-host: %b\r\n" % host
    return b"".join([forwarded, *passing.lines(headers)])


def without_upgrade(request: Request) -> bytes:
    """Return the head of a request as received, without its upgrade offer."""
    kept = [b"%b: %b\r\n" % header for header in request.headers if header[0] not in (b"upgrade", b"http2-settings")]
    version = b"1.0" if request.http_1_0 else b"1.1"
    return b"%b %b HTTP/%b\r\n%b\r\n" % (request.method, request.target, version, b"".join(kept))


def valid_request_id(given: bytes, new_id: str) -> str:
    """The client's request ID if it is valid, else `new_id`; callers pass the trace ID, so that both correlate."""
    return given.decode() if _SAFE_REQUEST_ID.fullmatch(given) else new_id


def with_common_lines(lines: list[bytes], request: Request | None) -> list[bytes]:
    """Return the header lines of a response, with an x-request-id and the request's `cors_lines`.

    Args:
        request: the request of the response, whose ID is used if it is valid; None if none was parsed.
    """
    if request is not None and request.cors_lines:
        lines = [*lines, request.cors_lines]
    if any(line.startswith(_REQUEST_ID_LINE) for line in lines):
        return lines
    given = (request.header(REQUEST_ID_HEADER) if request is not None else None) or b""
    return [*lines, _REQUEST_ID_LINE + valid_request_id(given, token_hex(16)).encode() + b"\r\n"]


def complete_response(
    status: int, lines: list[bytes], body: bytes, request: Request | None, *, keep_alive: bool
) -> bytes:
    """Return a response with an x-request-id, the request's `cors_lines`, and its framing.

    Args:
        request: the request of the response; None if none was parsed.
        keep_alive: whether the connection can be used for another request.
    """
    lines = [*with_common_lines(lines, request)]
    if status != NOT_MODIFIED:
        lines.append(b"content-length: %d\r\n" % len(body))
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    elif request is not None and request.http_1_0:
        lines.append(KEEP_ALIVE_1_0)
    if request is not None and request.method == b"HEAD":
        body = b""
    return b"".join([STATUS_LINES[status], *lines, b"\r\n", body])


def response_head(status: int, lines: Iterable[bytes]) -> bytes:
    """Return a status line, header lines, and the empty line."""
    return b"".join([STATUS_LINES[status], *lines, b"\r\n"])
