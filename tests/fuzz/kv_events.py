"""Reads any bytes as batches of KV events that an engine sends.

Property: a batch is read or rejected; the record of the cache stays within its bound, agrees with itself, and is empty
after a clear.
"""

from __future__ import annotations

from penstock.kv_cache.held_blocks import HeldBlocks
from penstock.kv_cache.kv_event_log import KvEventLog
from penstock.kv_cache.kv_events import AllBlocksCleared, BadEvents, read_batch

WORDS = (
    b"\x84\xa4type\xabBlockStored\xacblock_hashes\x91\x01",
    b"\xa9token_ids",
    b"\xaablock_size",
    b"\xabBlockStored",
    b"\xacBlockRemoved",
    b"\xb0AllBlocksCleared",
    b"\x93\xcb\x41\xda\x00\x00\x00\x00\x00\x00",
    b"\xcf" + b"\xff" * 8,
)

MAX_BLOCKS = 16


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    try:
        events = read_batch(data)
    except BadEvents:
        events = None
    blocks = HeldBlocks(most=MAX_BLOCKS)
    log = KvEventLog(blocks)
    # In two halves too, as a log whose batches are cut anywhere.
    half = len(data) // 2
    log.receive([(0, data), (1, data[:half]), (2, data[half:])])
    assert len(blocks) <= MAX_BLOCKS
    if events is not None:
        blocks.apply(events)
        assert len(blocks) <= MAX_BLOCKS
    blocks.apply([AllBlocksCleared()])
    assert len(blocks) == 0
    assert blocks.complete
