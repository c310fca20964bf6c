"""Decodes the KV cache events that vLLM publishes (and engines that publish as vLLM does).

A batch is a MessagePack array `[time, events, data-parallel rank]`. An event is a map whose `type` is its kind, or in
older versions an array whose first item is its kind. Fields that newer versions add are ignored, and missing ones have
their defaults. Source: vLLM's `vllm/distributed/kv_events.py`, versions 0.9 (arrays) to 0.32 (maps).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

MAX_BATCH_BYTES: Final = 1 << 20
"""Maximum size (bytes) of one batch; a larger batch is rejected. A batch of vLLM contains the blocks of one pass:
100,000 tokens fit."""

MAX_EVENTS: Final = 65_536
"""Maximum number of events of one batch."""

MAX_BLOCK_SIZE: Final = 4096
"""Maximum number of tokens of one block."""

DEVICE: Final = (None, "GPU", "CPU_ATTN")
"""Media of blocks that a request can use at once. Blocks that were moved to slower memory do not count as held."""

BlockHash = int | bytes
_Hash = int | Annotated[bytes, msgspec.Meta(max_length=64)]
_Token = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class BadEvents(Exception):
    """A batch is invalid; the message states why."""


class BlockStored(msgspec.Struct, frozen=True, tag="BlockStored"):
    """Consecutive blocks of one prompt were stored in the cache."""

    block_hashes: list[_Hash]
    """Names that the engine gives to the blocks; each depends on all tokens before it."""
    parent_block_hash: _Hash | None
    """Name of the block before the first of these blocks; None at the start of a prompt."""
    token_ids: list[_Token]
    """Tokens of all blocks."""
    block_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_SIZE)]
    """Tokens of one block."""
    lora_id: Any = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    """Inputs of a block's name besides its tokens (images, adapters, salts); one entry for each block."""
    group_idx: int | None = None
    """Group of layers, for models whose layers have caches of different kinds."""


class BlockRemoved(msgspec.Struct, frozen=True, tag="BlockRemoved"):
    """Blocks were evicted."""

    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    """The cache is empty."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class _StoredAsArray(BlockStored, frozen=True, array_like=True, tag="BlockStored"):
    pass


class _RemovedAsArray(BlockRemoved, frozen=True, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedAsArray(AllBlocksCleared, frozen=True, array_like=True, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    at: float
    events: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_EVENTS)]


_batches = msgspec.msgpack.Decoder(_Batch)
_maps = msgspec.msgpack.Decoder(KvEvent)
_arrays = msgspec.msgpack.Decoder(_StoredAsArray | _RemovedAsArray | _ClearedAsArray)


def _is_array(event: msgspec.Raw) -> bool:
    first: int = memoryview(event)[0]
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)


def read_batch(payload: bytes) -> list[KvEvent]:
    """Return the events of one batch, in order.

    Raises:
        BadEvents: the batch is too large, cannot be decoded, or contradicts itself.
    """
    if len(payload) > MAX_BATCH_BYTES:
        raise BadEvents(f"a batch of {len(payload)} bytes; at most {MAX_BATCH_BYTES} are accepted")
    try:
        events: list[KvEvent] = [
            (_arrays if _is_array(event) else _maps).decode(event) for event in _batches.decode(payload).events
        ]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadEvents(f"a batch cannot be decoded: {error}") from None
    for event in events:
        if isinstance(event, BlockStored):
            _check(event)
    return events


def _check(event: BlockStored) -> None:
    blocks = len(event.block_hashes)
    if len(event.token_ids) != blocks * event.block_size:
        raise BadEvents(
            f"{len(event.token_ids)} tokens for {blocks} blocks of {event.block_size}; the engine has another format"
        )
    if event.extra_keys is not None and len(event.extra_keys) != blocks:
        raise BadEvents(f"{len(event.extra_keys)} extra keys for {blocks} blocks; the engine has another format")
