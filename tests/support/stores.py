"""Helpers for tests of the store: an informer that records changes, and operator commands of etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Self

from adapters.etcd.etcd_stubs import Etcd3Client
from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.config_store import Changed, ConfigStore, Listing, Put, StoreUnavailable
from adapters.store.informer import Informer
from tests.support.wait import PATIENCE_S, found


class Following:
    """An informer that records every change, with methods to wait for changes."""

    def __init__(self, store: ConfigStore, prefix: str, *, seed: int = 1) -> None:
        self.store = store
        self.prefix = prefix
        self.changes: list[Changed] = []
        self._news = asyncio.Event()
        self.informer = Informer(store, prefix, self._note, rng=Random(seed))

    def _note(self, change: Changed) -> None:
        self.changes.append(change)
        self._news.set()

    @property
    def values(self) -> dict[str, bytes]:
        return {key: item.value for key, item in self.informer.items.items()}

    async def until(self, holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        """Wait until `holds` returns true; it is called after each change."""
        async with asyncio.timeout(within_s):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def until_same(self, reader: ConfigStore, within_s: float = PATIENCE_S) -> None:
        """Wait until the informer's copy equals the listing of `reader`; the store must not change during the wait."""

        async def listing() -> Listing | None:
            with suppress(StoreUnavailable):
                return await reader.list(self.prefix)
            return None

        listed = {item.key: item for item in (await found(listing)).items}
        await self.until(lambda: dict(self.informer.items) == listed, within_s)

    async def __aenter__(self) -> Self:
        self.informer.start()
        async with asyncio.timeout(PATIENCE_S):
            await self.informer.wait_synced()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.informer.stop()


async def put(store: ConfigStore, key: str, value: bytes) -> int:
    """Write a key and return its revision."""
    return (await store.commit((), (Put(key, value),))).revision


async def leader_epoch(store: ConfigStore) -> int:
    """Make a process the leader, and return its epoch."""
    await put(store, keys.LEADER, b"leader")
    item = await store.get(keys.LEADER)
    assert item is not None
    return item.create_revision


async def put_when_possible(store: ConfigStore, key: str, value: bytes) -> int:
    """Write a key as soon as the store is available."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await put(store, key, value)
            except StoreUnavailable:
                await asyncio.sleep(0.02)


async def free_etcd_space(server: EtcdServer, revision: int) -> None:
    """Compact, defragment and disarm the alarm, as an operator does when the space quota is exceeded."""
    await compact_etcd(server, revision)
    host, _, port = server.endpoint.rpartition(":")

    def free() -> None:
        client = Etcd3Client(host, int(port), timeout=10)
        try:
            client.defragment()
            for alarm in list(client.list_alarms()):
                client.disarm_alarm(alarm.member_id)
        finally:
            client.close()

    await asyncio.to_thread(free)


async def compact_etcd(server: EtcdServer, revision: int) -> None:
    """Compact etcd's history up to `revision`, as an operator does."""
    host, _, port = server.endpoint.rpartition(":")

    def compact() -> None:
        client = Etcd3Client(host, int(port), timeout=10)
        try:
            client.compact(revision, physical=True)
        finally:
            client.close()

    await asyncio.to_thread(compact)
