"""The informer on a real etcd that is stopped, killed, hung, cut off, compacted, wiped, or loses members."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from itertools import count
from pathlib import Path

import pytest
import uvloop

from adapters.etcd import etcd_connection, etcd_watch
from adapters.etcd.etcd_connection import CHANNEL_OPTIONS
from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.store.config_store import Delete, Put, StoreUnavailable
from lab.server_starting import start_etcd
from tests.support.etcd_cluster import start_etcd_cluster
from tests.support.relay import Relay
from tests.support.stores import Following, compact_etcd, put, put_when_possible
from tests.support.wait import until

AT = "/outages/"
CONVERGED_WITHIN_S = 3.0


@pytest.fixture
async def store(own_etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    """The client under test: values are not signed here."""
    store = EtcdStore([own_etcd.endpoint])
    yield store
    await store.close()


@pytest.fixture
async def operator(own_etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    """Another client, which writes and checks."""
    operator = EtcdStore([own_etcd.endpoint], call_timeout_s=20)
    yield operator
    await operator.close()


@pytest.fixture
async def relay(own_etcd: EtcdServer) -> AsyncIterator[Relay]:
    """Relay between the informer and etcd; other clients connect to etcd directly."""
    async with Relay(own_etcd.client_port) as relay:
        yield relay


@pytest.fixture
async def relayed(relay: Relay) -> AsyncIterator[EtcdStore]:
    store = EtcdStore([relay.endpoint])
    yield store
    await store.close()


class SteadyWriter:
    """Writes continuously while etcd is available, and collects the writes that etcd confirmed."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.confirmed: set[tuple[str, int]] = set()
        self.writing = asyncio.Lock()
        """Held during each write; a test that holds it suspends the writes."""
        self._stopping = False
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        for number in count():
            if self._stopping:
                return
            key = f"{AT}{number % 7}"
            do = Delete(key) if number % 5 == 4 else Put(key, str(number).encode())
            try:
                async with self.writing:
                    done = await self._store.commit((), [do])
                if isinstance(do, Put):
                    self.confirmed.add((key, done.revision))
            except StoreUnavailable:
                pass
            await asyncio.sleep(0.005)

    async def confirms(self, more: int) -> None:
        """Wait for `more` further confirmed writes."""
        wanted = len(self.confirmed) + more
        await until(lambda: len(self.confirmed) >= wanted or self._task.done())
        assert not self._task.done()

    async def stop(self) -> None:
        # Not cancelled: a commit in flight would continue, and change the store after the comparison.
        self._stopping = True
        await self._task


def stop_serving(server: EtcdServer, how: str) -> None:
    {"stopped": server.stop, "killed": server.kill, "hung": server.pause}[how]()


def bring_back(server: EtcdServer, how: str) -> None:
    if how == "hung":
        server.resume()
    else:
        server.start()
    server.wait_ready()


async def kill_when_all_is_logged(server: EtcdServer, data: Path, writer: SteadyWriter, store: EtcdStore) -> None:
    """Kill etcd once its write-ahead log has all writes.

    Before 3.5.5, etcd without other members confirms a write before it is in the log, and a kill in between loses it
    (https://github.com/etcd-io/etcd/issues/14370).
    """
    async with writer.writing:
        await put(store, AT + "last", b"the last write before the kill")
        await until(lambda: any(b"before the kill" in log.read_bytes() for log in data.glob("member/wal/*.wal")))
        await asyncio.to_thread(server.kill)


def watch_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "etcd-watch"}


@pytest.mark.parametrize("how", ["stopped", "killed", "hung"])
async def test_converges_after_etcd_is_back(
    own_etcd: EtcdServer, store: EtcdStore, operator: EtcdStore, how: str
) -> None:
    await operator.commit((), [Put(f"{AT}{number}", b"before") for number in range(50)])
    async with Following(store, AT) as following:
        stop_serving(own_etcd, how)
        with pytest.raises(StoreUnavailable):
            await store.get(AT)
        # Long enough to detect a hung watch, and for backoff to reach its maximum.
        await until(lambda: following.informer.age_s > (5.0 if how == "hung" else 2.0))
        assert following.informer.synced
        assert len(following.values) == 50
        await asyncio.to_thread(bring_back, own_etcd, how)
        await put_when_possible(operator, AT + "new", b"after")
        await operator.commit((), [Delete(AT + "7")])
        await following.until_same(operator)
        assert following.values[AT + "new"] == b"after"
        assert AT + "7" not in following.values
        await until(lambda: following.informer.age_s < 2.0)


async def test_no_confirmed_write_is_lost_through_outages(
    own_etcd: EtcdServer, store: EtcdStore, operator: EtcdStore, tmp_path: Path
) -> None:
    async with Following(store, AT) as following:
        writer = SteadyWriter(operator)
        for how in ("killed", "hung", "stopped"):
            await writer.confirms(30)
            if how == "killed":
                await kill_when_all_is_logged(own_etcd, tmp_path / "etcd" / "data", writer, store)
            else:
                await asyncio.to_thread(stop_serving, own_etcd, how)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(bring_back, own_etcd, how)
        await writer.confirms(30)
        await writer.stop()
        await following.until_same(operator)
    # Nothing was compacted, so the informer must have reported every write once and in order.
    reported = [(change.key, change.revision) for change in following.changes if change.now]
    assert writer.confirmed <= set(reported)
    revisions = [change.revision for change in following.changes]
    assert revisions == sorted(set(revisions))


async def test_changes_that_were_compacted_are_reported_as_a_difference(
    own_etcd: EtcdServer, relay: Relay, relayed: EtcdStore, operator: EtcdStore
) -> None:
    await operator.commit((), [Put(AT + name, b"1") for name in ("stays", "changes", "goes", "returns")])
    async with Following(relayed, AT) as following:
        await following.until_same(operator)
        following.changes.clear()
        relay.cut()
        await put(operator, AT + "changes", b"2")
        await operator.commit((), [Delete(AT + "goes"), Delete(AT + "returns")])
        await put(operator, AT + "came", b"1")
        await put(operator, AT + "returns", b"1")
        await compact_etcd(own_etcd, await put(operator, AT + "changes", b"3"))
        await relay.restore()
        await following.until_same(operator)
        reported = [(change.key.removeprefix(AT), change.now and change.now.value) for change in following.changes]
        assert reported == [("goes", None), ("came", b"1"), ("returns", b"1"), ("changes", b"3")]
        # The informer resumes at this revision.
        await put(operator, AT + "later", b"")
        await following.until_same(operator)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect hung etcd sooner than in production, to save time."""
    monkeypatch.setattr(etcd_watch, "ASK_PROGRESS_AFTER_S", 0.3)
    monkeypatch.setattr(etcd_watch, "HUNG_AFTER_S", 0.9)


@pytest.mark.usefixtures("impatient")
async def test_a_frozen_connection_is_replaced_by_another_endpoint(
    own_etcd: EtcdServer, relay: Relay, operator: EtcdStore
) -> None:
    await put(operator, AT + "x", b"1")
    store = EtcdStore([relay.endpoint, own_etcd.endpoint], call_timeout_s=6)
    async with Following(store, AT) as following:
        relay.freeze()
        await put(operator, AT + "x", b"2")
        # The connection stays open and silent; only a keepalive probe detects that.
        await following.until_same(operator)
        item = await store.get(AT + "x")
        assert item is not None
        assert item.value == b"2"
    await store.close()


async def test_a_hung_watch_is_detected_by_probing(
    own_etcd: EtcdServer, store: EtcdStore, request: pytest.FixtureRequest
) -> None:
    batches = store.watch(AT, 0)
    await anext(batches)
    request.getfixturevalue("impatient")
    own_etcd.pause()
    with pytest.raises(StoreUnavailable, match="has not answered"):
        await anext(batches)


async def test_a_large_backlog_is_received_completely(
    relay: Relay, relayed: EtcdStore, operator: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less than the missed history, which can therefore only arrive in fragments.
    small = [(name, 4 << 20 if "max_receive" in name else value) for name, value in CHANNEL_OPTIONS]
    monkeypatch.setattr(etcd_connection, "CHANNEL_OPTIONS", small)
    async with Following(relayed, AT) as following:
        relay.cut()
        for number in range(8):
            await put(operator, f"{AT}{number}", random.Random(number).randbytes(1_000_000))
        await relay.restore()
        await following.until(lambda: len(following.changes) == 8)
        assert {len(value) for value in following.values.values()} == {1_000_000}


async def test_a_wiped_store_is_listed_again(
    tmp_path: Path, own_etcd: EtcdServer, store: EtcdStore, operator: EtcdStore
) -> None:
    for number in range(20):
        await put(operator, f"{AT}old-{number}", b"")
    async with Following(store, AT) as following:
        own_etcd.kill()
        shutil.rmtree(tmp_path / "etcd" / "data")
        with await asyncio.to_thread(start_etcd, tmp_path / "etcd", client_port=own_etcd.client_port):
            # Revisions begin at 1 again: a watch from the last revision would never return.
            await put_when_possible(operator, AT + "new", b"")
            await following.until_same(operator)
            assert set(following.values) == {AT + "new"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[EtcdServer, ...]]:
    servers = start_etcd_cluster(tmp_path)
    yield servers
    for server in servers:
        server.kill()


async def test_a_lost_member_is_replaced_by_another(cluster: tuple[EtcdServer, ...]) -> None:
    store = EtcdStore([server.endpoint for server in cluster])
    async with Following(store, AT) as following:
        cluster[0].kill()
        await put_when_possible(store, AT + "x", b"")
        await following.until_same(store)
    await store.close()


async def test_a_member_without_quorum_does_not_count_as_current(cluster: tuple[EtcdServer, ...]) -> None:
    store = EtcdStore([cluster[0].endpoint])
    async with Following(store, AT) as following:
        cluster[1].pause()
        cluster[2].pause()
        with pytest.raises(StoreUnavailable):
            await store.get(AT + "x")
        await until(lambda: following.informer.age_s > 2.0)
        cluster[1].resume()
        await put_when_possible(store, AT + "quorum-again", b"")
        await following.until_same(store)
    await store.close()


async def test_close_returns_while_etcd_is_hung_and_leaves_no_thread(own_etcd: EtcdServer) -> None:
    before = set(threading.enumerate())
    store = EtcdStore([own_etcd.endpoint])
    batches = store.watch(AT, 0)
    await anext(batches)
    own_etcd.pause()
    calls = (*(store.get(AT) for _ in range(10)), store.grant_lease(5), anext(batches))
    waiting = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0.2)
    await store.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 12
    own_etcd.resume()
    # This includes the threads of gRPC.
    await until(lambda: not {thread for thread in threading.enumerate() if "asyncio" not in thread.name} - before)


def test_calls_and_watches_do_not_block_a_uvloop(own_etcd: EtcdServer) -> None:
    async def turns_during_a_call() -> int:
        store = EtcdStore([own_etcd.endpoint])
        turns = 0

        async def beat() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        async with Following(store, AT):
            own_etcd.pause()
            beating = asyncio.create_task(beat())
            with pytest.raises(StoreUnavailable):
                await store.list(AT)
            beating.cancel()
        own_etcd.resume()
        await store.close()
        return turns

    # The call waits 2 s for a response, which is about 200 iterations; a blocked loop would run one.
    assert uvloop.run(turns_during_a_call()) > 5


async def test_a_slow_consumer_applies_back_pressure_and_misses_nothing(store: EtcdStore, operator: EtcdStore) -> None:
    before = watch_threads()
    async with aclosing(store.watch(AT, 0)) as batches:
        await anext(batches)
        revisions = [await put(operator, AT + "x", b"") for _ in range(100)]
        seen: list[int] = []
        while len(seen) < 60:
            seen += [change.revision for change in await anext(batches)]
        assert seen == revisions[: len(seen)]
    # The watch was closed with more unread responses than the reader may hold.
    await until(lambda: not watch_threads() - before)


async def test_abandoned_watch_ends_its_thread(store: EtcdStore) -> None:
    before = watch_threads()
    async with aclosing(store.watch(AT, 0)) as batches:
        await anext(batches)
        assert watch_threads() - before
    await until(lambda: not watch_threads() - before)
