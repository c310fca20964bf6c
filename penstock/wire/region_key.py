"""Authentication of the data that the agents of one region share through Redis: HMAC-SHA256 under the region's key.

Entries with one writer and many readers, a hundred times a second, are too frequent for signatures by certificate, so
the agents of a region share one symmetric key (ADR 15). The key authenticates only loads, prefixes and the locations of
objects, as data of the region.
"""

from __future__ import annotations

import hmac

from penstock.wire.fleet_prefix import DEFAULT_PREFIX
from penstock.wire.peer_keys import BadSignature

KEY_BYTES = 32

TAG_BYTES = 16
"""Length (bytes) of an authentication tag: HMAC-SHA256, truncated to half its length (RFC 2104, section 5)."""


class RegionKeys:
    """The keys that the agents of one region share.

    During a rotation, a region has several keys: agents seal with the first key, and open entries sealed with any key.
    """

    __slots__ = ("keys", "prefix")

    def __init__(self, *keys: bytes, prefix: str = DEFAULT_PREFIX) -> None:
        """Uses keys of KEY_BYTES random bytes each.

        Args:
            prefix: of the keys of the fleet in etcd; tags cover it (ADR 19).

        Raises:
            ValueError: there is no key, or a key of another length.
        """
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"a region's key has {KEY_BYTES} bytes")
        self.keys = keys
        self.prefix = prefix

    def __repr__(self) -> str:
        return "RegionKeys(...)"

    def use(self, renewed: RegionKeys) -> None:
        """Replaces the keys by the keys of `renewed`."""
        self.keys = renewed.keys


class RegionKey:
    """Seals and opens the data that the agents of one region share for one purpose."""

    __slots__ = ("_keys", "_scope")

    def __init__(self, keys: RegionKeys, region: str, purpose: str = "shared-load") -> None:
        """Uses the keys of a region.

        Args:
            keys: keys of the region, which may be replaced later (`RegionKeys.use`).
            region: name of the region, which the tag authenticates too.
            purpose: kind of the payloads; a payload that was sealed for another purpose is rejected.
        """
        self._keys = keys
        self._scope = b"penstock/%b\0%b\0%b\0" % (purpose.encode(), region.encode(), keys.prefix.encode())

    def __repr__(self) -> str:
        return "RegionKey(...)"

    def seal(self, payload: bytes) -> bytes:
        """Returns the authentication tag, followed by the payload."""
        return _tag(self._keys.keys[0], self._scope, payload) + payload

    def open(self, sealed: bytes) -> bytes:
        """Returns the payload; raises BadSignature if no agent of the region sealed it. Tags are compared in
        constant time."""
        payload = sealed[TAG_BYTES:]
        for key in self._keys.keys:
            if hmac.compare_digest(_tag(key, self._scope, payload), sealed[:TAG_BYTES]):
                return payload
        raise BadSignature("the entry was not published by an agent of this region and fleet")


def _tag(key: bytes, scope: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, scope + payload, "sha256")[:TAG_BYTES]
