"""An in-memory store whose connection a test interrupts, silences or makes fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from random import Random

from adapters.store.config_store import Changed, Listing, StoreUnavailable
from lab.memory_store import MemoryStore


class NoWait(Random):
    """Jitter that is always the minimum, so that no caller waits."""

    def uniform(self, a: float, b: float) -> float:
        return a


class MostWait(Random):
    """Jitter that is always the maximum."""

    def uniform(self, a: float, b: float) -> float:
        return b


class UnsteadyStore(MemoryStore):
    """Fails as a test sets it; the content stays correct."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = 0
        self.watched_from: list[int] = []
        self.lists_to_fail = 0
        self.watches_to_fail: list[Exception] = []
        self.silent = False
        self.deaf = False
        self._breaks = 0

    def break_watches(self) -> None:
        """End all open watches."""
        self._breaks += 1
        self._wake_watches()

    async def list(self, prefix: str, *, values: bool = True) -> Listing:
        self.lists += 1
        if self.lists_to_fail:
            self.lists_to_fail -= 1
            raise StoreUnavailable("the test makes it fail")
        return await super().list(prefix, values=values)

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[tuple[Changed, ...], None]:
        self.watched_from.append(after_revision)
        if self.watches_to_fail:
            raise self.watches_to_fail.pop()
        breaks = self._breaks
        async with aclosing(super().watch(prefix, after_revision)) as batches:
            async for batch in batches:
                if self._breaks != breaks:
                    raise StoreUnavailable("the test breaks it")
                if self.silent:
                    await asyncio.Event().wait()
                yield () if self.deaf else batch
