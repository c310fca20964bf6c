"""Features of the store in memory alone: an injected clock and bounded history."""

from __future__ import annotations

import pytest

from adapters.store.config_store import Compacted, LeaseLost, Put, StoreError
from lab.memory_store import MemoryStore
from tests.support.clocks import SetClock
from tests.support.stores import put


async def test_leases_expire_by_the_injected_clock() -> None:
    clock = SetClock()
    store = MemoryStore(clock)
    lease = await store.grant_lease(10)
    await store.commit((), [Put("/x", b"", lease)])
    clock.now += 9.9
    await store.keep_alive(lease)
    clock.now += 9.9
    assert await store.get("/x") is not None
    clock.now += 0.1
    assert await store.get("/x") is None
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)


async def test_expired_lease_is_one_revision() -> None:
    clock = SetClock()
    store = MemoryStore(clock)
    lease = await store.grant_lease(10)
    done = await store.commit((), [Put("/a", b"", lease), Put("/b", b"", lease)])
    batches = store.watch("/", done.revision)
    assert await anext(batches) == ()
    clock.now += 10
    batch = await anext(batches)
    assert [(change.key, change.now, change.revision) for change in batch] == [
        ("/a", None, done.revision + 1),
        ("/b", None, done.revision + 1),
    ]
    await batches.aclose()


async def test_history_is_bounded() -> None:
    store = MemoryStore(keep_revisions=5)
    revisions = [await put(store, "/x", b"") for _ in range(10)]
    with pytest.raises(Compacted):
        await anext_change(store, revisions[3])
    assert (await anext_change(store, revisions[4]))[0] == revisions[5]


async def anext_change(store: MemoryStore, after_revision: int) -> list[int]:
    batches = store.watch("/", after_revision)
    while not (batch := await anext(batches)):
        pass
    await batches.aclose()
    return [change.revision for change in batch]


async def test_lease_shorter_than_a_second_is_refused() -> None:
    with pytest.raises(StoreError, match="at least 1 s"):
        await MemoryStore().grant_lease(0)
