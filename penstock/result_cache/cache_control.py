"""What clients and engines ask of the result cache with header fields (RFC 9111, RFC 9110 section 13.1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from math import inf
from typing import Final, NamedTuple

CACHE_CONTROL: Final = b"cache-control"
IF_NONE_MATCH: Final = b"if-none-match"
PRAGMA: Final = b"pragma"

QUOTE: Final = b'"'
"""At both ends of an entity tag."""

_NOT_KEPT: Final = (b"no-store", b"no-cache", b"private")
_AGES: Final = (b"s-maxage", b"max-age")
_ONE_CLIENT_ONLY: Final = frozenset({b"set-cookie", b"content-encoding", b"vary"})
_TAG_BYTES: Final = 16


class Wishes(NamedTuple):
    """What the Cache-Control field of a request asks for."""

    may_store: bool = True
    """Whether the response may be kept, and a kept one sent."""
    max_age_s: float | None = None
    """Maximum age (s) of a kept response; 0 for a new response; None for any age."""
    min_fresh_s: float = 0.0
    """Time (s) for which a kept response must remain fresh."""
    only_kept: bool = False
    """Whether no engine may run for the request."""


ANY: Final = Wishes()


def wishes_of(cache_control: bytes | None, pragma: bytes | None = None) -> Wishes:
    """Read the Cache-Control field of a request. Other directives are ignored: `max-stale`, as nothing stale is sent,
    and `no-transform`, since no body is changed. A malformed `max-age` or `min-fresh` asks for a new response.

    Args:
        pragma: the Pragma field, which counts if there is no Cache-Control.
    """
    if cache_control is None:
        return Wishes(max_age_s=0.0) if pragma is not None and b"no-cache" in pragma.lower() else ANY
    directives = _directives(cache_control)
    max_age = b"0" if b"no-cache" in directives else directives.get(b"max-age")
    return Wishes(
        b"no-store" not in directives,
        None if max_age is None else _seconds(max_age),
        _seconds(directives.get(b"min-fresh", b"0"), malformed=inf),
        b"only-if-cached" in directives,
    )


def lifetime_s(status: int, headers: Mapping[bytes, bytes]) -> float:
    """Return the time (s) for which a complete response may be kept: 0 for not at all, infinity without a limit.

    Args:
        headers: by name in lower case.
    """
    directives = _directives(headers.get(CACHE_CONTROL, b""))
    is_forbidden = not _ONE_CLIENT_ONLY.isdisjoint(headers) or any(each in directives for each in _NOT_KEPT)
    if status != 200 or is_forbidden:
        return 0.0
    limits_s = [_seconds(directives[name]) for name in _AGES if name in directives]
    if not limits_s:
        # The time of `Expires` is by the clock of the engine; it is mostly used to forbid caches.
        return 0.0 if b"expires" in headers else inf
    return max(0.0, limits_s[0] - _seconds(headers.get(b"age", b"0")))


def entity_tag(body: bytes) -> bytes:
    """Return the strong entity tag of a body, quotes included."""
    return tag_of(entity_digest(body))


def entity_digest(body: bytes = b"") -> blake2b:
    """Return the digest of the beginning of a body, which `update` continues; see `tag_of`."""
    return blake2b(body, digest_size=_TAG_BYTES)


def tag_of(digest: blake2b) -> bytes:
    """Return the strong entity tag of the body with a digest, quotes included."""
    return b'"%b"' % digest.hexdigest().encode()


def matches_tag(if_none_match: bytes | None, tag: bytes) -> bool:
    """Whether an If-None-Match field names an entity tag, by weak comparison."""
    if if_none_match is None:
        return False
    names = [name.strip().removeprefix(b"W/") for name in if_none_match.split(b",")]
    return tag in names or names == [b"*"]


def _seconds(value: bytes, malformed: float = 0.0) -> float:
    return float(value) if value.isdigit() and len(value) < 12 else malformed


def _directives(value: bytes) -> dict[bytes, bytes]:
    """Return the directives of a Cache-Control field with their arguments, names in lower case; of repeated ones the
    first."""
    pairs = (part.strip().partition(b"=") for part in reversed(value.split(b",")))
    return {name.strip().lower(): argument.strip().strip(b'"') for name, _, argument in pairs if name}
