"""Remembers requests that broke several engines, for a short time.

Clients repeat requests that failed: the SDKs of OpenAI and Anthropic twice, after a fraction of a second. A prompt that
ends engines would end several more with each repetition. A repeated request therefore breaks one engine at most; it is
not refused at once, since the engines may have failed for another reason.
"""

from __future__ import annotations

from hashlib import blake2b
from math import inf
from typing import Final

REMEMBERED_S: Final = 60.0
"""Time (s) for which a request is remembered: longer than all repetitions of an SDK take."""

MAX_REQUESTS: Final = 1024
"""Maximum number of remembered requests; the one that broke engines least recently is forgotten."""

MAX_PART_BYTES: Final = 64 * 1024
"""Size (bytes) of the beginning and of the end of a body by which, with its length, a request is recognised."""


class SuspectRequests:
    """The requests of one agent that broke several engines. Times are monotonic, in seconds."""

    __slots__ = ("_until", "until")

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}
        self.until = -inf
        """Until when any request is remembered (s)."""

    def add(self, tenant: str, body: bytes | bytearray, now: float) -> None:
        """Remember a tenant's request by its body."""
        digest = _digest(tenant, body)
        self._until.pop(digest, None)
        self._until[digest] = self.until = now + REMEMBERED_S
        if len(self._until) > MAX_REQUESTS:
            del self._until[next(iter(self._until))]

    def includes(self, tenant: str, body: bytes | bytearray, now: float) -> bool:
        """Whether a tenant's request is remembered."""
        return self._until.get(_digest(tenant, body), -inf) > now


def _digest(tenant: str, body: bytes | bytearray) -> bytes:
    digest = blake2b(b"%d %b " % (len(body), tenant.encode()), digest_size=16)
    digest.update(body[:MAX_PART_BYTES])
    digest.update(body[-MAX_PART_BYTES:])
    return digest.digest()
