"""A job store that does not respond: what needs it fails in a bounded time, and then at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from adapters.object_store.object_store import ObjectMissing, StoreUnavailable
from penstock.jobs.store_silence import SILENT_S
from penstock.routing.reasons import Reason
from regional_agent.jobs.api.api_responses import store_unavailable
from regional_agent.jobs.storage import job_storage
from regional_agent.jobs.storage.job_storage import THREADS, JobStorage, JobStorages, StoreSilent
from tests.support.wait import PATIENCE_S, until


class SilentStore:
    """A store without objects whose reads wait while it is silent."""

    def __init__(self) -> None:
        self.responds = threading.Event()
        self.reads = 0

    def read(self, path: str) -> bytes:
        self.reads += 1
        assert self.responds.wait(PATIENCE_S)
        raise ObjectMissing(path)


class Clock:
    """Monotonic time (s), which a test advances."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentStore]:
    silent = SilentStore()
    monkeypatch.setattr(job_storage, "_open", lambda url: silent)
    monkeypatch.setattr(job_storage, "CHECK_S", 0.01)
    yield silent
    silent.responds.set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(job_storage, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


async def find(storage: JobStorage) -> str:
    """Look for a record; returns what happened."""
    try:
        return "found" if await storage.find_record("record", dict) else "missing"
    except StoreUnavailable as error:
        return str(error)


async def test_what_needs_a_silent_store_fails_at_once_until_the_store_responds(
    store: SilentStore, clock: Clock
) -> None:
    failures: list[None] = []
    storages = JobStorages(lambda: failures.append(None))
    storage = storages.of("file:///store")
    async with asyncio.timeout(PATIENCE_S):
        running = [asyncio.create_task(find(storage)) for _ in range(3 * THREADS)]
        await until(lambda: store.reads == THREADS)
        clock.now += SILENT_S - 0.1
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in running)
        clock.now += 0.2
        silent = "the store does not respond"
        assert await asyncio.gather(*running) == [silent] * len(running)
        # All threads are in use, so that nothing is tried.
        clock.now += SILENT_S
        assert await asyncio.gather(*(find(storage) for _ in range(5))) == [silent] * 5
        assert (store.reads, len(failures)) == (THREADS, len(running) + 5)
        store.responds.set()
        await until(lambda: not storage._silence.is_silent)
        assert await asyncio.gather(*(find(storage) for _ in range(5))) == ["missing"] * 5
    storages.close()


async def tried_when_silent(storage: JobStorage, store: SilentStore, clock: Clock) -> asyncio.Task[str]:
    """Let a store become silent; returns the operation that is tried at it."""
    first = asyncio.create_task(find(storage))
    await until(lambda: store.reads == 1)
    clock.now += SILENT_S
    await first
    tried = asyncio.create_task(find(storage))
    await until(lambda: store.reads == 2)
    return tried


async def test_a_silent_store_is_logged_once(store: SilentStore, clock: Clock) -> None:
    storages = JobStorages()
    storage = storages.of("file:///store")
    with capture_logs() as logs:
        async with asyncio.timeout(PATIENCE_S):
            tried = await tried_when_silent(storage, store, clock)
            for _ in range(10):
                with pytest.raises(StoreSilent) as raised:
                    await storage.find_record("record", dict)
                assert store_unavailable(raised.value).reason is Reason.STORE_UNAVAILABLE
            clock.now += SILENT_S
            await tried
    assert [each["event"] for each in logs] == ["a job store does not respond"]
    storages.close()


async def test_one_operation_is_tried_at_a_silent_store_that_has_free_threads(store: SilentStore, clock: Clock) -> None:
    storages = JobStorages()
    storage = storages.of("file:///store")
    async with asyncio.timeout(PATIENCE_S):
        tried = await tried_when_silent(storage, store, clock)
        assert "respond" in await find(storage)
        assert store.reads == 2
        store.responds.set()
        assert await tried == "missing"
    storages.close()


async def test_an_operation_that_waits_for_a_thread_and_is_cancelled_is_not_executed(
    store: SilentStore, clock: Clock
) -> None:
    storages = JobStorages()
    storage = storages.of("file:///store")
    running = [asyncio.create_task(find(storage)) for _ in range(THREADS + 1)]
    await until(lambda: store.reads == THREADS)
    running[-1].cancel()
    await asyncio.wait(running[-1:])
    store.responds.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*running[:-1]) == ["missing"] * THREADS
    assert store.reads == THREADS
    storages.close()
