"""What a request's head must be like beyond what the parser checks, so that nobody downstream reads it differently.

llhttp, strict, already refuses repeated or conflicting Content-Length, Content-Length with Transfer-Encoding, folded
lines, bare LF and CR, a space before the colon, NUL and other control characters, and bad chunk sizes. The rest of
what makes two readers disagree (RFC 9112, sections 3.2, 6.1 and 11.2) is here.
"""

from __future__ import annotations

import re
from typing import Final

from regional_agent.http.messages import Request

MAY_NOT_REPEAT: Final = (
    b"authorization",
    b"content-type",
    b"expect",
    b"host",
    b"traceparent",
    b"x-model",
    b"x-penstock-route",
    b"x-request-id",
    b"x-request-timeout-ms",
)
"""Headers of which two would let two readers pick different ones."""

_AUTHORITY: Final = re.compile(rb"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._~!$&'()*+,;=%-]{0,255})(:[0-9]{0,5})?")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)


def complete_head(request: Request, version: str) -> str | None:
    """Fill in what follows from a parsed head; returns what is wrong with it, or None.

    Args:
        version: the HTTP version as the parser gives it, such as `1.1`.
    """
    if version != "1.1":
        if version != "1.0":
            return "only HTTP/1.1 and HTTP/1.0 are spoken here"
        request.http_1_0 = True
    by_name = request.index()
    if request.repeats:
        for name in MAY_NOT_REPEAT:
            if len(request.every(name)) > 1:
                return f"{name.decode()} is given twice"
    coding = None if request.plain else by_name.get(b"transfer-encoding")
    if coding is not None:
        if request.http_1_0:
            return "HTTP/1.0 has no Transfer-Encoding"
        if coding.lower() != b"chunked" or len(request.every(b"transfer-encoding")) > 1:
            return "the only Transfer-Encoding known here is chunked"
    else:
        request.length = int(by_name.get(b"content-length") or 0)
    return _complete_target(request, by_name.get(b"host"))


def head_bytes(request: Request) -> int:
    """The size of a head, about as it came."""
    return len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)


def _complete_target(request: Request, host: bytes | None) -> str | None:
    if host is None and not request.http_1_0:
        return "the Host header is missing"
    target = request.target
    request.authority = host or b""
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.match(target)
        if absolute is None:
            return None if target == b"*" else "the request target is neither a path nor an absolute http URL"
        request.authority = absolute[1]
        authority_end = absolute.end()
        target = request.target = target[authority_end:] or b"/"
        if not target.startswith(b"/"):
            target = request.target = b"/" + target
    if request.authority and not _known_authority(request.authority):
        return "the Host is not a host name with an optional port"
    if b"#" in target:
        return "the request target has a fragment"
    request.path = target.partition(b"?")[0] if b"?" in target else target
    return None


_seen_authorities: set[bytes] = set()
MAX_AUTHORITIES_KEPT: Final = 256


def _known_authority(authority: bytes) -> bool:
    """Whether it is a host with an optional port; the few that clients use are remembered."""
    if authority in _seen_authorities:
        return True
    if not _AUTHORITY.fullmatch(authority):
        return False
    if len(_seen_authorities) < MAX_AUTHORITIES_KEPT:
        _seen_authorities.add(authority)
    return True
