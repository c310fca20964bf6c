"""Follows the numbered log of KV events that one engine keeps, and detects missed batches.

An engine keeps its latest batches and sends them again on request (vLLM's replay endpoint). Every read starts at the
batch that was applied last. If the engine still has that batch with the same content, no batch was missed. Otherwise
the engine restarted or has dropped batches, and the record of its cache starts anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.kv_cache.held_blocks import HeldBlocks
from penstock.kv_cache.kv_events import BadEvents, read_batch


class KvEventLog:
    """The applied part of one engine's log, and the blocks in the engine's cache according to the log."""

    def __init__(self, blocks: HeldBlocks | None = None) -> None:
        """Create a log without applied batches."""
        self.blocks = blocks if blocks is not None else HeldBlocks()
        self.batches = 0
        """Number of applied batches."""
        self.gaps = 0
        """Number of times that batches were missed or invalid, so that the record of the cache started anew."""
        self.problem = ""
        """Reason why the last batch was rejected; empty if it was applied."""
        self._last: tuple[int, bytes] | None = None

    @property
    def read_from(self) -> int:
        """Number of the batch at which the next read starts."""
        return self._last[0] if self._last is not None else 0

    def receive(self, entries: Sequence[tuple[int, bytes]]) -> bool:
        """Apply the engine's response to a read from `read_from`: numbers and batches, in order.

        Returns:
            Whether all batches of the response are applied; if not, another read is due at once.
        """
        if self._last is not None:
            if not entries or entries[0] != self._last:
                self._last = None
                self._miss()
                # The next read starts at the first batch, so the record is complete again if the engine restarted.
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
