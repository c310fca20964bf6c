"""An in-memory store with faults: it is unavailable, or executes a commit but loses the response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from adapters.store.config_store import (
    Changed,
    Committed,
    Delete,
    KeyValue,
    Listing,
    Put,
    SameKey,
    StoreUnavailable,
    Unchanged,
)
from lab.memory_store import MemoryStore


class FaultyStore:
    """One client's access to a shared MemoryStore."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.away = False
        """Whether every call fails, including watches."""
        self.failures = 0
        """Number of calls that failed."""
        self.commits_in_doubt = False
        """Whether commits are executed but their responses are lost."""

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            self.failures += 1
            raise StoreUnavailable("away")

    async def get(self, key: str) -> KeyValue | None:
        await self._reach()
        return await self.store.get(key)

    async def list(self, prefix: str, *, values: bool = True) -> Listing:
        await self._reach()
        return await self.store.list(prefix, values=values)

    async def commit(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Committed:
        await self._reach()
        committed = await self.store.commit(expect, do)
        if self.commits_in_doubt:
            raise StoreUnavailable("the answer was lost")
        return committed

    async def grant_lease(self, ttl_s: int) -> int:
        await self._reach()
        return await self.store.grant_lease(ttl_s)

    async def keep_alive(self, lease_id: int) -> None:
        await self._reach()
        await self.store.keep_alive(lease_id)

    def renew_lease(self, lease_id: int, timeout_s: float) -> None:
        if self.away:
            self.failures += 1
            raise StoreUnavailable("away")
        self.store.renew_lease(lease_id, timeout_s)

    async def revoke_lease(self, lease_id: int) -> None:
        await self._reach()
        await self.store.revoke_lease(lease_id)

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[tuple[Changed, ...], None]:
        await self._reach()
        async for batch in self.store.watch(prefix, after_revision):
            await self._reach()
            yield batch

    async def close(self) -> None:
        await self.store.close()
