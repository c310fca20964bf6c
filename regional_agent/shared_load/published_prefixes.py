"""The keys that an agent publishes of prompts sent to endpoints: an authentication tag, then MessagePack."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.routing.affinity import MAX_UNPUBLISHED
from penstock.wire.region_key import RegionKey
from penstock.wire.session import BadSignature

PURPOSE = "prefixes"
"""Purpose for which the region's key authenticates the entries; see `RegionKey`."""

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Keys = Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=2**62)]], msgspec.Meta(max_length=MAX_UNPUBLISHED)]


class PublishedPrefixes(msgspec.Struct, frozen=True, array_like=True):
    """Keys of the prefixes and sessions of requests that an agent sent to endpoints."""

    agent: _Name
    epoch: int
    """Number of the start of the agent."""
    sent_at: float
    """Unix time (s) by the agent's clock."""
    keys: dict[_Name, _Keys]
    """Keys by endpoint; see `affinity.prefix_keys`. Keys are checksums within a tenant and model, without text."""


_decoder = msgspec.msgpack.Decoder(PublishedPrefixes)


def seal_prefixes(published: PublishedPrefixes, key: RegionKey) -> bytes:
    """Encode keys and authenticate them."""
    return key.seal(msgspec.msgpack.encode(published))


def open_prefixes(sealed: bytes, key: RegionKey) -> PublishedPrefixes:
    """Decode the keys that another agent published.

    Raises:
        BadSignature: the entry was not published by an agent of the region, or is invalid.
    """
    try:
        return _decoder.decode(key.open(sealed))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSignature(f"the entry cannot be decoded: {error}") from None
