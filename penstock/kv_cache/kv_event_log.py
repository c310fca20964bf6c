"""Follows the numbered log of KV events that one engine keeps, and detects what was missed.

An engine keeps its latest batches and sends them again on request (vLLM's replay endpoint). Every read starts at the
batch that was applied last: if the engine still has it, and it is the same, nothing was missed. Otherwise the engine
restarted or has dropped batches, and the record of its cache starts anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.kv_cache.held_blocks import HeldBlocks
from penstock.kv_cache.kv_events import BadEvents, read_batch


class KvEventLog:
    """What was applied of one engine's log, and the blocks that its cache holds by it."""

    def __init__(self, blocks: HeldBlocks | None = None) -> None:
        """Create a log of which nothing was read."""
        self.blocks = blocks if blocks is not None else HeldBlocks()
        self.batches = 0
        """Batches that were applied."""
        self.gaps = 0
        """How often batches were missed, or were invalid, so that the record of the cache started anew."""
        self.problem = ""
        """Why the last batch was rejected; empty if it was not."""
        self._last: tuple[int, bytes] | None = None

    @property
    def read_from(self) -> int:
        """Number of the batch at which the next read starts."""
        return self._last[0] if self._last is not None else 0

    def receive(self, entries: Sequence[tuple[int, bytes]]) -> bool:
        """Apply what the engine sent for a read from `read_from`: numbers and batches, in order.

        Returns:
            Whether everything that the engine sent is applied; if not, another read is due at once.
        """
        if self._last is not None:
            if not entries or entries[0] != self._last:
                self._last = None
                self._miss()
                # An engine that restarted sends its log from the first batch on: then the record is complete again.
                return False
            entries = entries[1:]
        else:
            self.blocks.reset(complete=not entries or entries[0][0] == 0)
        for position, (number, payload) in enumerate(entries):
            if self._last is not None and number != self._last[0] + 1:
                if position:
                    return False
                self._miss()
            self._last = number, payload
            self._apply(payload)
        return True

    def _apply(self, payload: bytes) -> None:
        try:
            self.blocks.apply(read_batch(payload))
        except BadEvents as error:
            self.problem = str(error)
            self._miss()
            return
        self.problem = ""
        self.batches += 1

    def _miss(self) -> None:
        self.gaps += 1
        self.blocks.reset(complete=False)
