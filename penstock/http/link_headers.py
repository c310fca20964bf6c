"""Response headers with URLs: an engine's own address does not reach clients.

Engines create absolute URLs from their own address, as in a redirect from `/v1/models/` to `/v1/models`. Clients can
reach such a URL only through the agent, at the same path.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.http.header_rules import Header

LINK_HEADERS: Final = frozenset(
    {b"azure-asyncoperation", b"content-location", b"link", b"location", b"operation-location", b"refresh"}
)

_AUTHORITY: Final = re.compile(
    rb"(?:[A-Za-z][A-Za-z0-9+.-]*:[/\\]{2,}|https?:[/\\]*|[/\\]{2,})([^/\\?#]*)", re.IGNORECASE
)
"""The start of a reference with an authority (RFC 3986, section 4.2), also as browsers read it: with other slashes."""
_LINK_TARGET: Final = re.compile(rb"<([^<>]*)>")
_REFRESH_TARGET: Final = re.compile(rb"(url\s*=\s*['\"]?\s*)([^'\"]+)", re.IGNORECASE)
_PUBLIC_SITE: Final = re.compile(rb"https://([a-z0-9-]+(?:\.[a-z0-9-]+)*\.([a-z][a-z0-9-]*))(?=[/?#]|$)", re.IGNORECASE)
"""The start of an https URL with a DNS name of several labels, the default port, and no user."""
_PRIVATE_DOMAINS: Final = frozenset(
    {
        b"arpa",
        b"corp",
        b"home",
        b"internal",
        b"intranet",
        b"lan",
        b"local",
        b"localdomain",
        b"localhost",
        b"private",
        b"svc",
    }
)
"""Top-level domains that are not in the public DNS (RFC 6762, 6761 and 8375, ICANN's `internal`, and customs)."""


def without_server_address(headers: list[Header], host: str, base_path: bytes) -> list[Header]:
    """Return the headers with paths in place of URLs of the server.

    A URL passes only if it is an https URL of a public DNS name other than `host` with the default port, such as that
    of an object store. Relative references pass, without the base path.

    Args:
        host: the host of the server's address.
        base_path: prefix of all paths of the server; empty for none.
    """
    own = host.rstrip(".").lower().encode()
    return [
        (name, _rewritten(name, value, own, base_path)) if name in LINK_HEADERS else (name, value)
        for name, value in headers
    ]


def _rewritten(name: bytes, value: bytes, own: bytes, base_path: bytes) -> bytes:
    if name == b"link":
        return _LINK_TARGET.sub(lambda found: b"<%b>" % _reference(found[1], own, base_path), value)
    if name == b"refresh":
        return _REFRESH_TARGET.sub(lambda found: found[1] + _reference(found[2], own, base_path), value)
    return _reference(value, own, base_path)


def _reference(reference: bytes, own: bytes, base_path: bytes) -> bytes:
    # Browsers ignore tabs within a URL.
    reference = reference.translate(None, b"\t").strip()
    site = _PUBLIC_SITE.match(reference)
    if site is not None and site[1].lower() != own and site[2].lower() not in _PRIVATE_DOMAINS:
        return reference
    with_authority = _AUTHORITY.match(reference)
    if with_authority is not None:
        reference = _rooted(reference[with_authority.end() :])
    if (
        base_path
        and reference.startswith(base_path)
        and reference[len(base_path) : len(base_path) + 1] in (b"", b"/", b"?", b"#")
    ):
        reference = _rooted(reference[len(base_path) :])
    return reference


def _rooted(path: bytes) -> bytes:
    """The path with one slash at its start; several slashes would be read as the start of an authority."""
    return b"/" + path.lstrip(b"/\\")
