"""Validation of request heads beyond the checks of the parser, so that all servers interpret a request alike.

llhttp, in strict mode, rejects repeated or conflicting Content-Length, Content-Length with Transfer-Encoding, folded
lines, bare LF and CR, a space before the colon, NUL and other control characters, and bad chunk sizes. This module
checks the rest of RFC 9112, sections 3.2, 6.1 and 11.2.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.http.header_rules import SINGLE_HEADERS, connection_options, decides
from regional_agent.http.headers.client_keys import remove_repeated_keys
from regional_agent.http.messages import Request

_AUTHORITY: Final = re.compile(rb"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._~!$&'()*+,;=%-]{0,255})(:[0-9]{0,5})?")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)


_USUAL_CONNECTIONS: Final = frozenset({b"close", b"keep-alive", b"upgrade", b"Keep-Alive", b"Upgrade"})


def complete_head(request: Request, version: str, location_header: bytes) -> str | None:
    """Validate a parsed head and set the fields that depend on it; returns the problem, or None.

    Headers that the Connection header names are removed first, and keys of clients where they do not belong, so that
    every decision is made by the headers that are sent upstream.

    Args:
        version: HTTP version from the parser, such as `1.1`.
        location_header: name of the header with a client's location; empty if none is configured.
    """
    if version != "1.1":
        if version != "1.0":
            return "only HTTP/1.1 and HTTP/1.0 are supported"
        request.http_1_0 = True
    by_name = request.index()
    connection = by_name.get(b"connection")
    if connection is not None and (connection not in _USUAL_CONNECTIONS or request.repeats):
        options = connection_options(request.headers)
        for option in options:
            if option == location_header or decides(option):
                return f"Connection names {option.decode('latin-1')}, which is not a hop-by-hop header"
        if options:
            request.headers = [header for header in request.headers if header[0] not in options]
            by_name = request.index()
    if request.repeats:
        for name in SINGLE_HEADERS:
            if len(request.every(name)) > 1:
                return f"{name.decode()} is repeated"
    remove_repeated_keys(request, location_header)
    by_name = request.by_name
    coding = None if request.plain else by_name.get(b"transfer-encoding")
    if coding is not None:
        if request.http_1_0:
            return "HTTP/1.0 has no Transfer-Encoding"
        if coding.lower() != b"chunked" or len(request.every(b"transfer-encoding")) > 1:
            return "the only supported Transfer-Encoding is chunked"
    else:
        request.length = int(by_name.get(b"content-length") or 0)
    return _complete_target(request, by_name.get(b"host"))


def skip_empty_lines(received: bytes, at: int) -> int:
    """Return the offset of a request line, before which empty lines are permitted (RFC 9112, section 2.2)."""
    while at < len(received) and received[at] in b"\r\n":
        at += 1
    return at


def request_line_problem(request: Request, received: bytes, at: int) -> str | None:
    """Return a problem if the parts of a request line are not separated by single spaces (RFC 9112, section 3).

    llhttp accepts more than one.

    Args:
        request: method and target as the parser read them.
        received: bytes with the request line.
        at: offset of the request line.
    """
    line = b"%b %b HTTP/" % (request.method, request.target)
    if received.startswith(line, at):
        return None
    return "the parts of the request line are not separated by single spaces"


def head_bytes(request: Request) -> int:
    """Return the approximate size (bytes) of a head as received."""
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
    if request.authority and not _is_authority(request.authority):
        return "the Host is not a host name with an optional port"
    if b"#" in target:
        return "the request target has a fragment"
    request.path = target.partition(b"?")[0] if b"?" in target else target
    return None


_valid_authorities: set[bytes] = set()
MAX_CACHED_AUTHORITIES: Final = 256


def _is_authority(authority: bytes) -> bool:
    """Whether `authority` is a host with an optional port. Valid values are cached; clients use few."""
    if authority in _valid_authorities:
        return True
    if not _AUTHORITY.fullmatch(authority):
        return False
    if len(_valid_authorities) < MAX_CACHED_AUTHORITIES:
        _valid_authorities.add(authority)
    return True
