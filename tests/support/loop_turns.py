"""How long work keeps an event loop from its other callbacks, in CPU time, so that a busy machine changes nothing."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class LoopTurns:
    """The longest turn of an event loop.

    A turn is the CPU time of the process between two runs of a callback that is always due. Work in another thread
    counts as far as the thread does not release the interpreter's lock: otherwise the callback runs meanwhile.
    """

    def __init__(self) -> None:
        self._longest_s = 0.0

    async def reset(self) -> None:
        """Forget the longest turn."""
        await self.longest()
        self._longest_s = 0.0

    async def longest(self) -> float:
        """Return the longest turn, in seconds, including the current one."""
        # The turn ends with the first pause, and the measurement runs before the second ends.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self._longest_s

    async def measure(self) -> None:
        """Measure until the task is cancelled."""
        before = time.process_time()
        while True:
            await asyncio.sleep(0)
            now = time.process_time()
            self._longest_s = max(self._longest_s, now - before)
            before = now


@asynccontextmanager
async def measured_turns() -> AsyncIterator[LoopTurns]:
    """Measure the turns of the running loop. Garbage collection, which serves no request, is postponed."""
    turns = LoopTurns()
    gc.collect()
    gc.disable()
    task = asyncio.create_task(turns.measure())
    try:
        yield turns
    finally:
        task.cancel()
        gc.enable()
