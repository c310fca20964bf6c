"""Block accounting of a paged KV cache: blocks that running sequences hold, and cached prefixes.

A prefix consists of spans of 512 tokens, each identified by an id that equal prefixes share (the Mooncake trace's
`hash_ids`). Any number of sequences can share a computed span; a span without holders stays cached until its blocks are
needed, and the least recently used span is evicted first. vLLM's automatic prefix caching works the same way, with 16
tokens instead of 512.

Invariant: every block is exactly one of free, cached, or held; held counts a shared span once.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.deployment import KV_BLOCK_TOKENS

SPAN_TOKENS = 512
"""Tokens per prefix id."""

SPAN_BLOCKS = SPAN_TOKENS // KV_BLOCK_TOKENS


class KvCache:
    """Block accounting of one engine. Every hold must be released exactly once."""

    __slots__ = ("_held_private", "_holders", "_idle", "total_blocks")

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self._held_private = 0
        self._holders: dict[int, int] = {}
        """Number of holders of each computed span that sequences hold."""
        self._idle: dict[int, None] = {}
        """Computed spans without holders, least recently used first."""

    @property
    def held_blocks(self) -> int:
        """Number of blocks that running sequences hold."""
        return self._held_private + len(self._holders) * SPAN_BLOCKS

    @property
    def cached_blocks(self) -> int:
        """Number of blocks of cached prefixes that no sequence holds."""
        return len(self._idle) * SPAN_BLOCKS

    @property
    def free_blocks(self) -> int:
        """Number of empty blocks."""
        return self.total_blocks - self.held_blocks - self.cached_blocks

    @property
    def usage(self) -> float:
        """Share of the cache that sequences hold (0-1), as vLLM reports it."""
        return self.held_blocks / self.total_blocks

    def hold_prefix(self, spans: Sequence[int]) -> int:
        """Hold the longest computed prefix of `spans` and return its length."""
        for count, span in enumerate(spans):
            if span in self._holders:
                self._holders[span] += 1
            elif span in self._idle:
                del self._idle[span]
                self._holders[span] = 1
            else:
                return count
        return len(spans)

    def hold_blocks(self, count: int) -> bool:
        """Allocate `count` private blocks, evicting idle prefixes as needed; False if there are too few blocks."""
        if count > self.total_blocks - self.held_blocks:
            return False
        while count > self.free_blocks:
            del self._idle[next(iter(self._idle))]
        self._held_private += count
        return True

    def share_span(self, span: int) -> None:
        """Convert the private blocks of a computed span into a shared span, which the sequence continues to hold.

        If another sequence has computed the same span, both sequences hold the same blocks and the copy is freed.
        """
        self._held_private -= SPAN_BLOCKS
        self._idle.pop(span, None)
        self._holders[span] = self._holders.get(span, 0) + 1

    def release(self, private_blocks: int, spans: Sequence[int]) -> None:
        """Release the blocks of a sequence. Its spans stay cached; the deepest span is evicted first."""
        self._held_private -= private_blocks
        for span in reversed(spans):
            holders = self._holders[span] - 1
            if holders:
                self._holders[span] = holders
            else:
                del self._holders[span]
                self._idle[span] = None
