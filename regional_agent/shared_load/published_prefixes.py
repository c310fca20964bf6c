"""What an agent publishes of the prompts that it sent to endpoints: an authentication tag, then MessagePack."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.routing.affinity import MAX_UNPUBLISHED
from penstock.wire.region_key import RegionKey
from penstock.wire.session import BadSignature

PURPOSE = "prefixes"
"""For which the region's key seals them."""

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Keys = Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=2**33)]], msgspec.Meta(max_length=MAX_UNPUBLISHED)]


class PublishedPrefixes(msgspec.Struct, frozen=True, array_like=True):
    """Keys of prefixes and sessions that an agent sent to endpoints."""

    agent: _Name
    epoch: int
    """Start of the agent."""
    sent_at: float
    """Unix time (s) by the agent's clock."""
    keys: dict[_Name, _Keys]
    """By endpoint; see `affinity.prefix_keys`. They are checksums within tenant and model, and no text."""


_decoder = msgspec.msgpack.Decoder(PublishedPrefixes)


def seal_prefixes(published: PublishedPrefixes, key: RegionKey) -> bytes:
    """Encode and authenticate."""
    return key.seal(msgspec.msgpack.encode(published))


def open_prefixes(sealed: bytes, key: RegionKey) -> PublishedPrefixes:
    """Decode what another agent published.

    Raises:
        BadSignature: no agent of the region published it, or it is invalid.
    """
    try:
        return _decoder.decode(key.open(sealed))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSignature(f"the entry cannot be decoded: {error}") from None
