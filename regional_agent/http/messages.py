"""HTTP heads as they pass through: what a request is here, which headers travel, and how heads are written.

Hop-by-hop headers end at each hop (RFC 9110, section 7.6.1). Our own headers are removed from whatever a client sends,
so that nothing it claims about routing is ever believed. An engine never learns a client's key, address or place; it is
told `x-forwarded-proto` and `x-forwarded-host`, for those that write links to themselves. A proxy in `trusted_proxies`
is believed about these two and anybody else is not.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from http import HTTPStatus
from typing import Final

from penstock.health import orca

Header = tuple[bytes, bytes]

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

HOP_BY_HOP_ANYWAY: Final = HOP_BY_HOP | {b"close"}
"""What Connection may name without any effect."""

OWN_PREFIX: Final = b"x-penstock-"
"""Headers that only Penstock sets."""

TIMEOUT_HEADER: Final = b"x-request-timeout-ms"
"""How long the sender still waits for the answer, in milliseconds. Clients may send it; engines and peers get what is
left of it."""

REQUEST_ID_HEADER: Final = b"x-request-id"

WRITTEN_ANEW: Final = frozenset(
    {
        b"content-length",
        b"expect",
        b"forwarded",
        b"host",
        b"traceparent",
        b"via",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-real-ip",
        REQUEST_ID_HEADER,
        TIMEOUT_HEADER,
    }
)
"""Headers that say something of this hop: what the next one hears of it, we say ourselves."""

CLIENT_ADDRESSES: Final = frozenset(
    {
        b"cf-connecting-ip",
        b"cf-connecting-ipv6",
        b"cf-pseudo-ipv4",
        b"cloudfront-viewer-address",
        b"fastly-client-ip",
        b"true-client-ip",
        b"x-appengine-user-ip",
        b"x-azure-clientip",
        b"x-azure-socketip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-envoy-external-address",
        b"x-original-forwarded-for",
        b"x-vercel-forwarded-for",
    }
)
"""Where CDNs and other proxies say it besides."""

NOT_FOR_ENGINES: Final = WRITTEN_ANEW | CLIENT_ADDRESSES | {b"authorization"}
"""The client's key is for us, and its address nobody else's business."""

NO_BODY_STATUSES: Final = frozenset({204, 304})
"""Answers that end with their head (RFC 9110, section 6.4.1)."""

RARE_HEADERS: Final = frozenset(
    {
        b"expect",
        b"tracestate",
        b"transfer-encoding",
        b"upgrade",
        b"via",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        TIMEOUT_HEADER,
    }
)
"""Headers that this hop acts on and most requests do not have."""

MAX_NAMES_KEPT: Final = 1024
MAX_NAME_KEPT_BYTES: Final = 64

_REASON_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_STATUS_LINES: Final = {code: b"HTTP/1.1 %d %b\r\n" % (code, phrase) for code, phrase in _REASON_PHRASES.items()}


class Request:
    """One request: the head as parsed, header names in lower case, the body de-chunked and, mostly, whole."""

    __slots__ = (
        "authority",
        "body",
        "by_name",
        "forgotten",
        "headers",
        "http_1_0",
        "keep_alive",
        "kept_bytes",
        "length",
        "method",
        "pace",
        "passing",
        "path",
        "plain",
        "queued",
        "received_bytes",
        "repeats",
        "started",
        "target",
        "upgrade",
        "whole",
    )

    def __init__(self, like: Request | None = None) -> None:
        """Nothing has come of it yet, or a head like that of another request."""
        if like is None:
            self.method = b""
            self.target = b""
            """Path and query; the scheme and authority of an absolute target are taken off."""
            self.path = b""
            self.authority = b""
            """Who was asked: the target's authority or the Host header."""
            self.headers: list[Header] = []
            self.by_name: dict[bytes, bytes] = {}
            """The same, once `index` has been called; of a repeated one the last."""
            self.repeats = True
            """Some header is there more than once."""
            self.length: int | None = None
            """The body's length in bytes by the head; None for a chunked one until it is whole."""
            self.keep_alive = True
            self.http_1_0 = False
            self.plain = False
            """None of RARE_HEADERS is there, so none of them need be looked for."""
            self.upgrade = b""
            """The protocol that the client wants to speak after this, in lower case."""
            self.passing = b""
            """What `request_lines_onward` makes of it, where that is known already."""
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
            self.passing = like.passing
        self.body: bytes | bytearray = b""
        """What has been received and is kept, in case the request must be sent again."""
        self.received_bytes = 0
        self.pace: tuple[float, int] | None = None
        """How long (s) its body may take, as last worked out, and how much of it there was then; None of one that was
        never waited for."""
        self.whole = False
        """The body has been received to its end."""
        self.kept_bytes = 0
        """How much of it counts towards what may be kept at one time."""
        self.queued = False
        """It waits for its turn although its body is not whole."""
        self.started = False
        """The application has it."""
        self.forgotten = False
        """More of the body was passed on than is kept: it cannot be sent again."""

    def header(self, name: bytes) -> bytes | None:
        """A header's value, or None. Of a repeated one the last; those that may not repeat are refused before."""
        return (self.by_name or self.index()).get(name)

    def every(self, name: bytes) -> list[bytes]:
        """All values of a header, in order."""
        value = self.header(name)
        if value is None:
            return []
        return [value for key, value in self.headers if key == name] if self.repeats else [value]

    def index(self) -> dict[bytes, bytes]:
        """Note what there is by name, once all headers are there."""
        by_name = self.by_name = dict(self.headers)
        self.repeats = len(by_name) != len(self.headers)
        self.plain = RARE_HEADERS.isdisjoint(by_name)
        return by_name


def without_upgrade(request: Request) -> bytes:
    """The head of a request as it came, but for the offer to speak something else."""
    kept = [b"%b: %b\r\n" % header for header in request.headers if header[0] not in (b"upgrade", b"http2-settings")]
    version = b"1.0" if request.http_1_0 else b"1.1"
    return b"%b %b HTTP/%b\r\n%b\r\n" % (request.method, request.target, version, b"".join(kept))


class PassingNames(dict[bytes, bytes]):
    """Which headers pass in one direction: by name, the start of the line to write, empty for those that do not."""

    def __init__(self, stopped: frozenset[bytes], *, own_pass: bool = False) -> None:
        """`stopped` do not pass, nor hop-by-hop ones; `own_pass` says whether headers of ours do."""
        self._stopped = stopped | HOP_BY_HOP
        self._own_pass = own_pass

    def lines(self, headers: list[Header]) -> list[bytes]:
        """The header lines that pass."""
        return [start + value + b"\r\n" for name, value in headers if (start := self[name])]

    def __missing__(self, name: bytes) -> bytes:
        """Names are few, so what becomes of each is kept; not for one who makes them up.

        A `_` is taken for a `-`, as some servers do (CGI, WSGI).
        """
        plain = name.replace(b"_", b"-")
        passes = plain not in self._stopped and (self._own_pass or not plain.startswith(OWN_PREFIX))
        start = name + b": " if passes else b""
        if len(self) < MAX_NAMES_KEPT and len(name) <= MAX_NAME_KEPT_BYTES:
            self[name] = start
        return start


TO_ENGINE: Final = PassingNames(NOT_FOR_ENGINES)
"""Where no proxy says in a header where clients are."""

_FROM_ENGINE: Final = PassingNames(frozenset({b"content-length", REQUEST_ID_HEADER, orca.HEADER}))
_FROM_PEER: Final = PassingNames(frozenset({b"content-length", REQUEST_ID_HEADER}), own_pass=True)


def request_lines_onward(
    request: Request, names: PassingNames, proto: bytes, host: bytes, *, keep_trace_state: bool = True
) -> bytes:
    """What an engine or a peer hears of the client, and what of its headers it may see: those of `names`.

    `tracestate` belongs to a trace, and goes only where that is continued.

    Args:
        proto: the scheme that the client used.
        host: whom it asked; empty where it did not say.
    """
    headers = request.headers
    if b"connection" in request.by_name:
        headers = _not_named_by_connection(headers)
    if not request.plain and not keep_trace_state and request.header(b"tracestate") is not None:
        headers = [header for header in headers if header[0] != b"tracestate"]
    asked = b"x-forwarded-proto: %b\r\n" % proto
    if host:
        asked += b"x-forwarded-host: %b\r\n" % host
    return b"".join([asked, *names.lines(headers)])


def response_headers_back(headers: list[Header], by_name: Container[bytes], *, from_peer: bool) -> list[bytes]:
    """The header lines of a response that go on to the client; a peer agent's own headers pass, an engine's do not."""
    if b"connection" in by_name:
        headers = _not_named_by_connection(headers)
    return (_FROM_PEER if from_peer else _FROM_ENGINE).lines(headers)


def response_head(status: int, lines: Iterable[bytes]) -> bytes:
    """A status line, header lines, and the empty line."""
    return b"".join([status_line(status), *lines, b"\r\n"])


def status_line(status: int) -> bytes:
    """The first line of a response."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def _not_named_by_connection(headers: list[Header]) -> list[Header]:
    """The headers that Connection does not declare hop-by-hop."""
    named = {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}
    return headers if named <= HOP_BY_HOP_ANYWAY else [header for header in headers if header[0] not in named]
