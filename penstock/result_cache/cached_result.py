"""A kept response, as agents store it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.answers.token_counts import Usage
from penstock.result_cache.cache_control import Wishes

STORED: Final = b"stored:"
"""Prefix of the key in an entry in Redis whose body is in the job store: an agent of an earlier release, which would
send an empty body, rejects the entry."""

ENTRY_OVERHEAD_BYTES: Final = 512
"""Bytes that an entry counts besides its body: keys, header fields, and the overhead of the stores."""

_Key = Annotated[bytes, msgspec.Meta(max_length=64)]
_Field = Annotated[bytes, msgspec.Meta(max_length=256)]


class CachedResult(msgspec.Struct, frozen=True, array_like=True):
    """A complete response with status 200. The order of the fields is the format in Redis."""

    key: _Key
    """The key under which the entry is stored, in Redis after STORED if the job store has the body; under another one
    it is rejected."""
    stored_at: float
    """Unix time (s)."""
    expires_at: float
    """Unix time (s)."""
    content_type: _Field
    tag: _Field
    """The entity tag."""
    region: str
    """Region that served the request."""
    usage: Usage | None
    """The tokens that the engine reported; None without a report."""
    body: bytes
    stored_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Size of the body in the job store; 0 for an entry that has its body."""

    @property
    def size_bytes(self) -> int:
        """What the entry counts in bounds of memory."""
        return len(self.body) + ENTRY_OVERHEAD_BYTES

    def age_s(self, now: float) -> float:
        """Return the time (s) since the response was stored; 0 if the clock of the agent that stored it is ahead.

        Args:
            now: Unix time (s).
        """
        return max(0.0, now - self.stored_at)

    def is_fresh(self, now: float) -> bool:
        """Whether the response may be sent at `now` (Unix time, s)."""
        return now < self.expires_at

    def suits(self, wishes: Wishes, now: float, lifetime_s: float) -> bool:
        """Whether the response may be sent at `now` (Unix time, s), with the policy's lifetime (s) of responses, to a
        client with wishes."""
        age_s = self.age_s(now)
        fresh_s = min(self.expires_at - now, lifetime_s - age_s)
        is_young = wishes.max_age_s is None or age_s < wishes.max_age_s
        return is_young and fresh_s > 0.0 and fresh_s >= wishes.min_fresh_s


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(CachedResult)


def encode_result(result: CachedResult) -> bytes:
    """Return the stored form of an entry."""
    return _encode(result)


def decode_result(encoded: bytes) -> CachedResult:
    """Read the stored form of an entry; raises msgspec.DecodeError or UnicodeDecodeError if it is malformed."""
    return _decoder.decode(encoded)
