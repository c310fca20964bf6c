"""The contract of ConfigStore: one suite, run against the store in memory and a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from itertools import count

import pytest

from adapters.etcd.etcd_store import LIST_PAGE_KEYS, EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.store.config_store import (
    Changed,
    Compacted,
    ConfigStore,
    Delete,
    LeaseLost,
    Put,
    SameKey,
    StoreError,
    StoreUnavailable,
    Unchanged,
)
from adapters.store.signed_store import SignedStore
from lab.memory_store import MemoryStore
from lab.server_starting import start_etcd
from tests.support.identities import control_plane_keyring
from tests.support.stores import compact_etcd, put
from tests.support.wait import PATIENCE_S

Compact = Callable[[int], Awaitable[None]]
_numbers = count()


@pytest.fixture(scope="module")
def contract_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A separate etcd for this module, which compacts the history."""
    with start_etcd(tmp_path_factory.mktemp("contract")) as server:
        yield server


@pytest.fixture(params=["memory", "signed", "etcd"])
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[tuple[ConfigStore, Compact]]:
    if request.param != "etcd":
        memory = MemoryStore()

        async def compact_memory(revision: int) -> None:
            memory.compact(revision)

        yield memory if request.param == "memory" else SignedStore(memory, control_plane_keyring()), compact_memory
        await memory.close()
    else:
        server: EtcdServer = request.getfixturevalue("contract_etcd")
        etcd = EtcdStore([server.endpoint], call_timeout_s=20)
        yield etcd, lambda revision: compact_etcd(server, revision)
        await etcd.close()


@pytest.fixture
def store(opened: tuple[ConfigStore, Compact]) -> ConfigStore:
    return opened[0]


@pytest.fixture
def compact(opened: tuple[ConfigStore, Compact]) -> Compact:
    return opened[1]


@pytest.fixture
def at() -> str:
    """Return a prefix that no other test uses."""
    return f"/penstock/contract/{next(_numbers)}/"


async def take(store: ConfigStore, prefix: str, after_revision: int, wanted: int) -> list[Changed]:
    """The first `wanted` changes of a watch."""
    changes: list[Changed] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(store.watch(prefix, after_revision)) as batches:
        while len(changes) < wanted:
            changes += await anext(batches)
    return changes


async def exhaust(batches: AsyncIterator[tuple[Changed, ...]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for _ in batches:
            pass


async def test_absent_key_is_none(store: ConfigStore, at: str) -> None:
    assert await store.get(at + "x") is None


async def test_get_returns_the_stored_value(store: ConfigStore, at: str) -> None:
    value = bytes(range(256))
    revision = await put(store, at + "ключ", value)
    found = await store.get(at + "ключ")
    assert found is not None
    assert (found.key, found.value, found.lease_id) == (at + "ключ", value, 0)
    assert found.create_revision == found.mod_revision == revision
    again = await put(store, at + "ключ", b"")
    found = await store.get(at + "ключ")
    assert found is not None
    assert (found.value, found.create_revision, found.mod_revision) == (b"", revision, again)


async def test_list_is_ordered_and_keeps_to_the_prefix(store: ConfigStore, at: str) -> None:
    for name in ("b", "a", "c/d"):
        await put(store, at + name, name.encode())
    last = await put(store, at.removesuffix("/") + "0", b"just after the prefix")
    listing = await store.list(at)
    assert [item.key for item in listing.items] == [at + "a", at + "b", at + "c/d"]
    assert listing.revision == last
    assert (await store.list(at + "nothing")).items == ()


async def test_a_list_without_values_has_everything_else(store: ConfigStore, at: str) -> None:
    lease_id = await store.grant_lease(60)
    await store.commit((), [Put(at + "a", b"value", lease_id), Put(at + "b", b"")])
    whole, bare = await store.list(at), await store.list(at, values=False)
    assert [item.value for item in bare.items] == [b"", b""]
    assert bare.revision == whole.revision
    for whole_item, bare_item in zip(whole.items, bare.items, strict=True):
        assert (whole_item.key, whole_item.create_revision, whole_item.mod_revision) == (
            bare_item.key,
            bare_item.create_revision,
            bare_item.mod_revision,
        )
    await store.revoke_lease(lease_id)


async def test_a_long_list_is_of_one_revision(store: ConfigStore, at: str) -> None:
    names = [f"{number:03d}" for number in range(2 * LIST_PAGE_KEYS + 1)]
    await store.commit((), [Put(at + name, b"before") for name in names])

    async def change_the_last() -> None:
        for _ in range(20):
            await put(store, at + names[-1], b"after")

    changing = asyncio.create_task(change_the_last())
    listing = await store.list(at)
    await changing
    assert [item.key for item in listing.items] == [at + name for name in names]
    assert all(item.mod_revision <= listing.revision for item in listing.items)
    assert [item.key for item in (await store.list(at, values=False)).items] == [at + name for name in names]


async def test_create_only_succeeds_once(store: ConfigStore, at: str) -> None:
    key = at + "x"
    first = await store.commit([Unchanged(key, 0)], [Put(key, b"1")])
    second = await store.commit([Unchanged(key, 0)], [Put(key, b"2"), Put(at + "y", b"2")])
    assert (first.succeeded, second.succeeded) == (True, False)
    assert second.revision == first.revision
    assert [item.value for item in (await store.list(at)).items] == [b"1"]


async def test_compare_and_swap(store: ConfigStore, at: str) -> None:
    key = at + "x"
    first = await put(store, key, b"1")
    assert (await store.commit([Unchanged(key, first)], [Put(key, b"2")])).succeeded
    assert not (await store.commit([Unchanged(key, first)], [Put(key, b"3")])).succeeded
    found = await store.get(key)
    assert found is not None
    assert found.value == b"2"


async def test_several_keys_are_compared_and_swapped_together(store: ConfigStore, at: str) -> None:
    a, b = await put(store, at + "a", b"1"), await put(store, at + "b", b"1")
    both = [Put(at + "a", b"2"), Put(at + "b", b"2"), Put(at + "c", b"2")]
    for expect in (
        [Unchanged(at + "a", a), Unchanged(at + "b", a)],
        [Unchanged(at + "a", b), Unchanged(at + "b", b)],
        [Unchanged(at + "a", a), Unchanged(at + "b", b), Unchanged(at + "c", b)],
        [Unchanged(at + "a", a), SameKey(at + "b", 0)],
    ):
        assert not (await store.commit(expect, both)).succeeded
    assert [item.value for item in (await store.list(at)).items] == [b"1", b"1"]
    assert (await store.commit([Unchanged(at + "a", a), SameKey(at + "b", b), Unchanged(at + "c", 0)], both)).succeeded
    assert [item.value for item in (await store.list(at)).items] == [b"2", b"2", b"2"]


async def test_fencing_survives_a_write_but_not_another_creation(store: ConfigStore, at: str) -> None:
    leader = at + "leader"
    epoch = await put(store, leader, b"one")
    await put(store, leader, b"one, again")
    assert (await store.commit([SameKey(leader, epoch)], [Put(at + "plan", b"1")])).succeeded
    await store.commit((), [Delete(leader)])
    assert not (await store.commit([SameKey(leader, epoch)], [Put(at + "plan", b"2")])).succeeded
    assert (await put(store, leader, b"two")) > epoch
    assert not (await store.commit([SameKey(leader, epoch)], [Put(at + "plan", b"3")])).succeeded
    assert not (await store.commit([SameKey(leader, 0)], [Put(at + "plan", b"4")])).succeeded
    found = await store.get(at + "plan")
    assert found is not None
    assert found.value == b"1"


async def test_concurrent_increments_lose_none(store: ConfigStore, at: str) -> None:
    key = at + "counter"
    await put(store, key, b"0")

    async def increment() -> None:
        while True:
            now = await store.get(key)
            assert now is not None
            swap = Put(key, str(int(now.value) + 1).encode())
            if (await store.commit([Unchanged(key, now.mod_revision)], [swap])).succeeded:
                return

    await asyncio.gather(*(increment() for _ in range(12)))
    found = await store.get(key)
    assert found is not None
    assert found.value == b"12"


async def test_a_transaction_is_one_revision_and_one_batch(store: ConfigStore, at: str) -> None:
    before = await put(store, at + "old", b"")
    done = await store.commit((), [Put(at + "a", b"1"), Put(at + "b", b"2"), Delete(at + "old")])
    async with asyncio.timeout(PATIENCE_S), aclosing(store.watch(at, before)) as batches:
        batch: tuple[Changed, ...] = ()
        while not batch:
            batch = await anext(batches)
    assert {(change.key, change.now.value if change.now else None) for change in batch} == {
        (at + "a", b"1"),
        (at + "b", b"2"),
        (at + "old", None),
    }
    assert {change.revision for change in batch} == {done.revision}


async def test_an_empty_transaction_makes_no_revision(store: ConfigStore, at: str) -> None:
    before = await put(store, at + "x", b"")
    assert (await store.commit((), [Delete(at + "absent")])).revision == before
    assert (await store.commit([SameKey(at + "x", before)], [])) == await store.commit((), [])


async def test_oversized_transaction_is_refused_whole(store: ConfigStore, at: str) -> None:
    with pytest.raises(StoreError) as refusal:
        await store.commit((), [Put(f"{at}{number}", b"") for number in range(129)])
    assert not isinstance(refusal.value, StoreUnavailable)
    with pytest.raises(StoreError):
        await store.commit((), [Put(at + "x", b"1"), Put(at + "x", b"2")])
    assert (await store.list(at)).items == ()


async def test_revoked_lease_takes_its_keys(store: ConfigStore, at: str) -> None:
    lease = await store.grant_lease(60)
    mine = await store.commit((), [Put(at + "a", b"", lease), Put(at + "b", b"", lease), Put(at + "free", b"")])
    assert {item.key: item.lease_id for item in (await store.list(at)).items} == {
        at + "a": lease,
        at + "b": lease,
        at + "free": 0,
    }
    await store.revoke_lease(lease)
    await store.revoke_lease(lease)
    assert [item.key for item in (await store.list(at)).items] == [at + "free"]
    gone = await take(store, at, mine.revision, 2)
    assert {(change.key, change.now) for change in gone} == {(at + "a", None), (at + "b", None)}


async def test_a_lost_lease_is_reported_and_changes_nothing(store: ConfigStore, at: str) -> None:
    lease = await store.grant_lease(60)
    await store.revoke_lease(lease)
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)
    with pytest.raises(LeaseLost):
        await asyncio.to_thread(store.renew_lease, lease, 5.0)
    with pytest.raises(LeaseLost):
        await store.commit((), [Put(at + "free", b""), Put(at + "held", b"", lease)])
    assert (await store.list(at)).items == ()


async def test_a_rewritten_key_is_detached_from_its_lease(store: ConfigStore, at: str) -> None:
    first, second = await store.grant_lease(60), await store.grant_lease(60)
    await store.commit((), [Put(at + "moved", b"", first), Put(at + "freed", b"", first)])
    await store.commit((), [Put(at + "moved", b"", second), Put(at + "freed", b"")])
    await store.revoke_lease(first)
    assert [item.key for item in (await store.list(at)).items] == [at + "freed", at + "moved"]
    await store.revoke_lease(second)
    assert [item.key for item in (await store.list(at)).items] == [at + "freed"]


async def test_lease_lives_while_kept_alive_and_expires_after(store: ConfigStore, at: str) -> None:
    kept_s, clock = 8, asyncio.get_running_loop().time
    kept, left = await store.grant_lease(kept_s), await store.grant_lease(4)
    granted_s = clock()
    done = await store.commit((), [Put(at + "kept", b"", kept), Put(at + "left", b"", left)])
    expiry = asyncio.create_task(take(store, at, done.revision, 1))
    while not expiry.done() or clock() < granted_s + kept_s + 1:
        await (store.keep_alive(kept) if clock() < granted_s + 4 else asyncio.to_thread(store.renew_lease, kept, 5.0))
        await asyncio.sleep(0.3)
    assert [(change.key, change.now) for change in expiry.result()] == [(at + "left", None)]
    with pytest.raises(LeaseLost):
        await store.keep_alive(left)
    assert [item.key for item in (await store.list(at)).items] == [at + "kept"]
    await store.revoke_lease(kept)


async def test_watch_replays_history_then_follows(store: ConfigStore, at: str) -> None:
    start = (await store.list(at)).revision
    revisions = [await put(store, at + "x", b"1"), await put(store, at + "x", b"2")]
    await put(store, at.removesuffix("/") + "0", b"just after the prefix")
    revisions.append((await store.commit((), [Delete(at + "x")])).revision)
    following = asyncio.create_task(take(store, at, start, 5))
    await asyncio.sleep(0)
    revisions += [await put(store, at + "x", b"3"), await put(store, at + "y", b"4")]
    changes = await following
    assert [change.revision for change in changes] == revisions
    assert [change.now and change.now.value for change in changes] == [b"1", b"2", None, b"3", b"4"]
    recreated = changes[3].now
    assert recreated is not None
    assert recreated.create_revision == recreated.mod_revision == revisions[3]
    # From a revision in the middle: no change twice, none omitted.
    later = await take(store, at, revisions[1], 3)
    assert [change.revision for change in later] == revisions[2:]


async def test_watch_from_revision_zero_is_from_the_beginning(store: ConfigStore, at: str) -> None:
    try:
        revision = await put(store, at + "x", b"")
        assert (await take(store, at, 0, 1))[0].revision == revision
    except Compacted:
        # A store must report that its history was compacted.
        pass


async def test_an_idle_watch_reports_progress(store: ConfigStore, at: str) -> None:
    revision = (await store.list(at)).revision
    async with asyncio.timeout(PATIENCE_S), aclosing(store.watch(at, revision)) as batches:
        assert [await anext(batches) for _ in range(2)] == [(), ()]


async def test_watches_are_independent(store: ConfigStore, at: str) -> None:
    start = (await store.list(at)).revision
    both = [asyncio.create_task(take(store, at + name, start, 20)) for name in ("a", "b")]
    ended = store.watch(at, start)
    await anext(ended)
    await ended.aclose()
    for number in range(20):
        await store.commit((), [Put(at + "a", str(number).encode()), Put(at + "b", b"")])
    a_changes, b_changes = await asyncio.gather(*both)
    assert [change.now and change.now.value for change in a_changes] == [str(n).encode() for n in range(20)]
    assert len({change.revision for change in b_changes}) == 20


async def test_compacted_history_is_reported(store: ConfigStore, compact: Compact, at: str) -> None:
    first = await put(store, at + "x", b"1")
    second = await put(store, at + "x", b"2")
    third = await put(store, at + "x", b"3")
    await compact(second)
    with pytest.raises(Compacted):
        await take(store, at, first, 1)
    assert [change.revision for change in await take(store, at, second, 1)] == [third]


async def test_deletion_at_the_compacted_revision_is_not_lost(store: ConfigStore, compact: Compact, at: str) -> None:
    seen = await put(store, at + "x", b"1")
    deleted = (await store.commit((), [Delete(at + "x")])).revision
    await put(store, at + "y", b"")
    await compact(deleted)
    # The watch reports the deletion, or that its history was compacted; silence is an error.
    with pytest.raises(Compacted):
        await take(store, at, seen, 1)


async def test_a_watch_ahead_of_the_store_is_reported(store: ConfigStore, at: str) -> None:
    revision = await put(store, at + "x", b"")
    with pytest.raises(Compacted, match="before"):
        await take(store, at, revision + 1000, 1)


async def test_a_closed_store_raises_and_ends_its_watches(store: ConfigStore, at: str) -> None:
    batches = store.watch(at, (await store.list(at)).revision)
    await anext(batches)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await exhaust(batches)
    for call in (
        store.get(at),
        store.list(at),
        store.commit((), ()),
        store.grant_lease(1),
        store.keep_alive(1),
    ):
        with pytest.raises(StoreUnavailable):
            await call
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(store.renew_lease, 1, 5.0)
    with pytest.raises(StoreUnavailable):
        await anext(store.watch(at, 1))
    await store.close()
