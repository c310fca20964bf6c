"""HTTP heads as they pass through: what a request is here, which headers travel, and how heads are written.

Hop-by-hop headers end at each hop (RFC 9110, section 7.6.1). Our own headers are removed from whatever a client sends,
so that nothing it claims about routing is ever believed.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

Header = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
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

OWN_PREFIX = b"x-penstock-"
"""Headers that only Penstock sets."""

NOT_FOR_ENGINES = frozenset({b"authorization", b"host", b"content-length", b"expect", b"x-forwarded-for", b"forwarded"})
"""The client's key is for us, its address is nobody else's business, and framing is written anew."""

_REASON_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


class Request:
    """One whole request: the head as parsed, header names in lower case, the body de-chunked."""

    __slots__ = ("body", "headers", "http_1_0", "keep_alive", "method", "target")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: list[Header] = []
        self.body = bytearray()
        self.keep_alive = True
        self.http_1_0 = False

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0]

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def every(self, name: bytes) -> list[bytes]:
        """All values of a header, in order."""
        return [value for key, value in self.headers if key == name]


def request_headers_onward(request: Request) -> list[bytes]:
    """The header lines of `request` that an engine or a peer may see, as bytes ready to write."""
    named = _named_by_connection(request.headers)
    return [
        b"%b: %b\r\n" % (name, value)
        for name, value in request.headers
        if name not in HOP_BY_HOP
        and name not in NOT_FOR_ENGINES
        and name not in named
        and not name.startswith(OWN_PREFIX)
    ]


def response_headers_back(headers: Iterable[Header], *, from_peer: bool) -> list[bytes]:
    """The header lines of a response that go on to the client; a peer agent's own headers pass, an engine's do not."""
    headers = list(headers)
    named = _named_by_connection(headers)
    return [
        b"%b: %b\r\n" % (name, value)
        for name, value in headers
        if name not in HOP_BY_HOP
        and name not in named
        and name != b"content-length"
        and (from_peer or not name.startswith(OWN_PREFIX))
    ]


def response_head(status: int, lines: Iterable[bytes]) -> bytes:
    """A status line, header lines, and the empty line."""
    phrase = _REASON_PHRASES.get(status, b"")
    return b"".join([b"HTTP/1.1 %d %b\r\n" % (status, phrase), *lines, b"\r\n"])


def _named_by_connection(headers: Iterable[Header]) -> frozenset[bytes]:
    return frozenset(
        token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")
    )
