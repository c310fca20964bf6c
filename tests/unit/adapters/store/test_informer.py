"""The informer on a store with injected faults; on a real etcd: tests/integration/test_etcd_outages.py."""

from __future__ import annotations

import asyncio
import math
from random import Random
from types import SimpleNamespace

import pytest

from adapters.store import informer as informer_module
from adapters.store.config_store import Changed, Compacted, Delete, Put, StoreError
from adapters.store.informer import Informer, WatchLimits
from tests.support.running import running
from tests.support.stores import Following, put
from tests.support.unsteady_store import MostWait, NoWait, UnsteadyStore
from tests.support.wait import PATIENCE_S, until


@pytest.fixture
async def store() -> UnsteadyStore:
    return UnsteadyStore()


def reported(following: Following) -> list[tuple[str, bytes | None]]:
    return [(change.key, change.now.value if change.now else None) for change in following.changes]


async def test_reports_the_content_by_revision_and_then_the_changes(store: UnsteadyStore) -> None:
    await put(store, "/b", b"1")
    await put(store, "/a", b"2")
    async with Following(store, "/") as following:
        assert reported(following) == [("/b", b"1"), ("/a", b"2")]
        await put(store, "/a", b"3")
        await store.commit((), [Delete("/b")])
        await following.until(lambda: len(following.changes) == 4)
        assert reported(following)[2:] == [("/a", b"3"), ("/b", None)]
        assert following.values == {"/a": b"3"}


async def test_items_cannot_be_written(store: UnsteadyStore) -> None:
    await put(store, "/a", b"1")
    async with Following(store, "/") as following:
        with pytest.raises(TypeError):
            following.informer.items["/a"] = following.informer.items["/a"]  # type: ignore[index]


async def test_not_synced_and_infinitely_old_before_the_first_list(store: UnsteadyStore) -> None:
    store.lists_to_fail = 3
    informer = Informer(store, "/", rng=NoWait())
    assert not informer.synced
    assert informer.age_s == math.inf
    async with running(informer), asyncio.timeout(PATIENCE_S):
        await informer.wait_synced()
        assert informer.age_s < math.inf
    assert informer.synced
    assert store.lists == 4


async def test_a_broken_watch_resumes_without_a_list_or_duplicates(store: UnsteadyStore) -> None:
    await put(store, "/a", b"1")
    async with Following(store, "/") as following:
        second = await put(store, "/a", b"2")
        await following.until(lambda: len(following.changes) == 2)
        store.break_watches()
        third = await put(store, "/a", b"3")
        await following.until(lambda: len(following.changes) == 3)
    assert [change.revision for change in following.changes][1:] == [second, third]
    assert store.lists == 1
    assert store.watched_from == [second - 1, second]


async def test_compacted_history_is_reported_as_difference(store: UnsteadyStore) -> None:
    await store.commit((), [Put(key, b"1") for key in ("/changes", "/goes", "/returns", "/stays")])
    async with Following(store, "/") as following:
        following.changes.clear()
        store.break_watches()
        await store.commit((), [Delete("/goes"), Delete("/returns")])
        await put(store, "/returns", b"1")
        await put(store, "/came", b"1")
        store.compact(await put(store, "/changes", b"2"))
        await following.until_same(store)
    assert reported(following) == [("/goes", None), ("/returns", b"1"), ("/came", b"1"), ("/changes", b"2")]


async def test_a_callback_that_raises_receives_all_later_changes(store: UnsteadyStore) -> None:
    seen: list[str] = []

    def on_change(change: Changed) -> None:
        seen.append(change.key)
        raise RuntimeError("a bug of the listener")

    await put(store, "/a", b"")
    informer = Informer(store, "/", on_change, rng=NoWait())
    async with running(informer):
        await informer.wait_synced()
        await put(store, "/b", b"")
        await put(store, "/c", b"")
        await until(lambda: len(seen) == 3)
        assert list(informer.items) == seen == ["/a", "/b", "/c"]
    assert len(store.watched_from) == 1


async def test_a_silent_watch_is_replaced(store: UnsteadyStore) -> None:
    store.silent = True
    informer = Informer(store, "/", rng=NoWait(), limits=WatchLimits(silent_after_s=0.05))
    async with running(informer):
        await until(lambda: len(store.watched_from) >= 3)
        store.silent = False
        await put(store, "/a", b"")
        await until(lambda: "/a" in informer.items)


@pytest.mark.parametrize("error", [StoreError("refused"), ValueError("a bug"), StopAsyncIteration(), TimeoutError()])
async def test_no_error_of_a_watch_ends_the_informer(store: UnsteadyStore, error: Exception) -> None:
    class Failing(UnsteadyStore):
        def watch(self, prefix: str, after_revision: int):  # type: ignore[no-untyped-def]
            if not self.watched_from:
                self.watched_from.append(after_revision)
                raise error
            return super().watch(prefix, after_revision)

    failing = Failing()
    async with Following(failing, "/") as following:
        await put(failing, "/a", b"")
        await following.until(lambda: "/a" in following.values)


async def test_history_compacted_faster_than_listed_causes_no_busy_loop(
    store: UnsteadyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[tuple[int, int]] = []

    def pause_s(attempt: int, **_: object) -> float:
        pauses.append((store.lists, attempt))
        return 0.0

    monkeypatch.setattr(informer_module, "full_jitter_s", pause_s)
    monkeypatch.setattr(informer_module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    store.watches_to_fail = [Compacted("at once")] * 6
    async with running(Informer(store, "/", rng=NoWait())):
        await until(lambda: len(pauses) == 6)
    assert pauses == [(attempt + 1, attempt) for attempt in range(6)]


async def test_lists_periodically_in_case_an_event_was_lost(store: UnsteadyStore) -> None:
    informer = Informer(store, "/", rng=Random(1), limits=WatchLimits(relist_after_s=0.2))
    async with running(informer):
        await informer.wait_synced()
        store.deaf = True
        await put(store, "/lost", b"")
        await until(lambda: "/lost" in informer.items)
    assert store.lists >= 2


async def test_stops_cleanly_in_every_wait(store: UnsteadyStore) -> None:
    before = asyncio.all_tasks()
    store.lists_to_fail = 1000
    waiting = Informer(store, "/", rng=MostWait())
    waiting.start()
    await until(lambda: store.lists >= 2)
    await waiting.stop()
    store.lists_to_fail, store.silent = 0, True
    silent = Informer(store, "/", rng=MostWait())
    silent.start()
    await silent.wait_synced()
    await silent.stop()
    await silent.stop()
    await until(lambda: asyncio.all_tasks() == before)
