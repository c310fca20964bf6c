"""A store that reports the duration of each call, and each start of a watch."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TypeVar

from adapters.store.config_store import (
    Changed,
    Committed,
    ConfigStore,
    Delete,
    KeyValue,
    Listing,
    Put,
    SameKey,
    StoreError,
    Unchanged,
)
from control_plane.planning.internal_metrics import InternalMetrics

T = TypeVar("T")


class MeasuredStore:
    """Forwards every call to another store.

    Args:
        store: the store to measure.
        metrics: receives the measurements.
        clock: monotonic time, in seconds.
    """

    def __init__(
        self, store: ConfigStore, metrics: InternalMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._watched: set[str] = set()

    async def get(self, key: str) -> KeyValue | None:
        """See ConfigStore."""
        return await self._measured("get", self._store.get(key))

    async def list(self, prefix: str, *, values: bool = True) -> Listing:
        """See ConfigStore."""
        return await self._measured("list", self._store.list(prefix, values=values))

    async def commit(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Committed:
        """See ConfigStore."""
        return await self._measured("commit", self._store.commit(expect, do))

    async def grant_lease(self, ttl_s: int) -> int:
        """See ConfigStore."""
        return await self._measured("grant_lease", self._store.grant_lease(ttl_s))

    async def keep_alive(self, lease_id: int) -> None:
        """See ConfigStore."""
        await self._measured("keep_alive", self._store.keep_alive(lease_id))

    def renew_lease(self, lease_id: int, timeout_s: float) -> None:
        """See ConfigStore; recorded as `keep_alive`."""
        with self._recorded("keep_alive"):
            self._store.renew_lease(lease_id, timeout_s)

    async def revoke_lease(self, lease_id: int) -> None:
        """See ConfigStore."""
        await self._measured("revoke_lease", self._store.revoke_lease(lease_id))

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[tuple[Changed, ...], None]:
        """See ConfigStore."""
        if prefix in self._watched:
            self._metrics.watch_restarts.inc()
        self._watched.add(prefix)
        async with aclosing(self._store.watch(prefix, after_revision)) as batches:
            async for batch in batches:
                yield batch

    async def close(self) -> None:
        """See ConfigStore."""
        await self._store.close()

    async def _measured(self, operation: str, call: Awaitable[T]) -> T:
        with self._recorded(operation):
            return await call

    @contextmanager
    def _recorded(self, operation: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        except StoreError:
            self._metrics.store_called(operation, self._clock() - began, ok=False)
            raise
        self._metrics.store_called(operation, self._clock() - began, ok=True)
