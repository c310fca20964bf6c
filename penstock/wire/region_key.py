"""Authentication of the load that the agents of one region publish to each other: HMAC-SHA256 under the region's key.

One writer and many readers a hundred times a second are too many for signatures by certificate, so the agents of a
region share one symmetric key (ADR 15). It authenticates a load as one of the region's, and is used for nothing else.
"""

from __future__ import annotations

import hmac

from penstock.wire.session import BadSignature

KEY_BYTES = 32

TAG_BYTES = 16
"""HMAC-SHA256 is truncated to half its length (RFC 2104, section 5)."""


class RegionKey:
    """The key that the agents of one region share."""

    __slots__ = ("_key", "_region")

    def __init__(self, key: bytes, region: str) -> None:
        """Uses a key for a region.

        Args:
            key: KEY_BYTES random bytes.
            region: its name is part of what is authenticated.

        Raises:
            ValueError: the key has another length.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"a region's key has {KEY_BYTES} bytes")
        self._key = key
        self._region = b"penstock/shared-load\0%b\0" % region.encode()

    def __repr__(self) -> str:
        return "RegionKey(...)"

    def seal(self, payload: bytes) -> bytes:
        """Returns the authentication tag, followed by the payload."""
        return self._tag(payload) + payload

    def open(self, sealed: bytes) -> bytes:
        """Returns the payload of what an agent of the region sealed; raises BadSignature. Takes constant time."""
        payload = sealed[TAG_BYTES:]
        if not hmac.compare_digest(self._tag(payload), sealed[:TAG_BYTES]):
            raise BadSignature("the entry was not published by an agent of this region")
        return payload

    def _tag(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, self._region + payload, "sha256")[:TAG_BYTES]
