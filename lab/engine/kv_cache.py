"""Block accounting of a paged KV cache: blocks that running sequences hold, and cached prefixes.

A prefix comes in spans of 512 tokens, each named by an id that equal prefixes share (the Mooncake trace's `hash_ids`).
A span whose tokens have been computed can be shared by any number of sequences; a span without holders stays until its
blocks are needed, least recently used first. As vLLM's automatic prefix caching does, with 512 tokens for its 16.

Invariant: every block is exactly one of free, cached, or held; held counts a shared span once.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.engine.deployment import KV_BLOCK_TOKENS

SPAN_TOKENS = 512
"""Tokens that one prefix id stands for."""

SPAN_BLOCKS = SPAN_TOKENS // KV_BLOCK_TOKENS


class KvCache:
    """Block accounting of one engine. Every hold must be released exactly once."""

    __slots__ = ("_held_private", "_holders", "_idle", "total_blocks")

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self._held_private = 0
        self._holders: dict[int, int] = {}
        """Computed spans that sequences hold, and how many do."""
        self._idle: dict[int, None] = {}
        """Computed spans without holders, least recently used first."""

    @property
    def held_blocks(self) -> int:
        """Blocks that running sequences need."""
        return self._held_private + len(self._holders) * SPAN_BLOCKS

    @property
    def cached_blocks(self) -> int:
        """Blocks kept only in case their prefix comes again."""
        return len(self._idle) * SPAN_BLOCKS

    @property
    def free_blocks(self) -> int:
        """Blocks with nothing in them."""
        return self.total_blocks - self.held_blocks - self.cached_blocks

    @property
    def usage(self) -> float:
        """Share of the cache that sequences hold (0-1), which is what vLLM reports."""
        return self.held_blocks / self.total_blocks

    def hold_prefix(self, spans: Sequence[int]) -> int:
        """Hold the longest leading run of `spans` that is computed already; returns its length."""
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
        """Take `count` blocks for one sequence alone, forgetting idle prefixes as needed; False changes nothing."""
        if count > self.total_blocks - self.held_blocks:
            return False
        while count > self.free_blocks:
            del self._idle[next(iter(self._idle))]
        self._held_private += count
        return True

    def share_span(self, span: int) -> None:
        """Turn the private blocks of a span just computed into a shared one that its sequence goes on holding.

        Where another sequence computed the same span meanwhile, both hold the one and the double is freed.
        """
        self._held_private -= SPAN_BLOCKS
        self._idle.pop(span, None)
        self._holders[span] = self._holders.get(span, 0) + 1

    def release(self, private_blocks: int, spans: Sequence[int]) -> None:
        """Give back what a sequence held. Its spans stay as cached prefixes, the deepest to be forgotten first."""
        self._held_private -= private_blocks
        for span in reversed(spans):
            holders = self._holders[span] - 1
            if holders:
                self._holders[span] = holders
            else:
                del self._holders[span]
                self._idle[span] = None
