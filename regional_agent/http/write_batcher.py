"""Writes of one turn of the event loop, sent one after the other at its end.

Each write wakes whoever reads the other side, where that sleeps. Written together, they find it awake but for the first
time; written one by one between decisions, each pays for a wake-up: a quarter of what a whole request costs.
"""

from __future__ import annotations

import asyncio
from typing import Final

LARGE_BYTES: Final = 32 * 1024
"""More in one write goes at once: an event loop may read several megabytes in a turn, from who could be told to wait
once the other side is seen not to take them."""


class Outgoing:
    """What waits for the end of the turn, of all connections of a listener or a pool, in order."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self) -> None:
        """Nothing waits."""
        self._waiting: list[tuple[asyncio.WriteTransport, bytes]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def write(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Send at the end of this turn; before that a transport may be aborted, and closed only after `flush`."""
        if not self._waiting:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self.flush)
        self._waiting.append((transport, data))
        if len(data) > LARGE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                try:
                    transport.write(data)
                except RuntimeError:
                    # One that takes no writes any more must not cost the others theirs.
                    transport.abort()
