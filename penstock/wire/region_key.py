"""Authentication of what the agents of one region share through Redis: HMAC-SHA256 under the region's key.

One writer and many readers a hundred times a second are too many for signatures by certificate, so the agents of a
region share one symmetric key (ADR 15). It authenticates loads, prefixes and the locations
of objects as the region's, and nothing else.
"""

from __future__ import annotations

import hmac

from penstock.wire.session import BadSignature

KEY_BYTES = 32

TAG_BYTES = 16
"""HMAC-SHA256 is truncated to half its length (RFC 2104, section 5)."""


class RegionKeys:
    """The keys that the agents of one region share.

    During a rotation there are several: agents seal with the first, and open what any of them sealed.
    """

    __slots__ = ("keys",)

    def __init__(self, *keys: bytes) -> None:
        """Uses keys of KEY_BYTES random bytes each; raises ValueError if there is none, or one has another length."""
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"a region's key has {KEY_BYTES} bytes")
        self.keys = keys

    def __repr__(self) -> str:
        return "RegionKeys(...)"

    def use(self, renewed: RegionKeys) -> None:
        """Uses other keys from now on."""
        self.keys = renewed.keys


class RegionKey:
    """Seals and opens what the agents of one region share, for one purpose."""

    __slots__ = ("_keys", "_region")

    def __init__(self, keys: RegionKeys, region: str, purpose: str = "shared-load") -> None:
        """Uses the keys of a region.

        Args:
            keys: may change later.
            region: its name is part of what is authenticated.
            purpose: what the payloads are: one that was sealed for another purpose is not accepted.
        """
        self._keys = keys
        self._region = b"penstock/%b\0%b\0" % (purpose.encode(), region.encode())

    def __repr__(self) -> str:
        return "RegionKey(...)"

    def seal(self, payload: bytes) -> bytes:
        """Returns the authentication tag, followed by the payload."""
        return self._tag(self._keys.keys[0], payload) + payload

    def open(self, sealed: bytes) -> bytes:
        """Returns the payload of what an agent of the region sealed; raises BadSignature. Compares in constant time."""
        payload = sealed[TAG_BYTES:]
        for key in self._keys.keys:
            if hmac.compare_digest(self._tag(key, payload), sealed[:TAG_BYTES]):
                return payload
        raise BadSignature("the entry was not published by an agent of this region")

    def _tag(self, key: bytes, payload: bytes) -> bytes:
        return hmac.digest(key, self._region + payload, "sha256")[:TAG_BYTES]
