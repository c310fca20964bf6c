"""Revoked keys in the store: concurrent changes, a lost or forged value, and values of a newer release."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import decode, encode
from adapters.store.config_store import Delete, Put, StoreError
from control_plane.audit.audit_log import AuditLog
from control_plane.tenants.key_revocation_store import KeyRevocationStore
from lab.memory_store import MemoryStore
from penstock.policy.revoked_keys import RevokedKey, RevokedKeySet
from tests.support.stores import leader_epoch
from tests.support.wait import until

DUTY = Caller("duty", Role.OPERATOR)
ONE, TWO = "1" * 64, "2" * 64


@asynccontextmanager
async def running(store: MemoryStore, name: str = "a", now: float = 1000.0) -> AsyncIterator[KeyRevocationStore]:
    made = KeyRevocationStore(store, AuditLog(store), name, rng=Random(1), clock=lambda: now)
    made.informer.start()
    await made.informer.wait_synced()
    try:
        yield made
    finally:
        await made.informer.stop()


async def stored(store: MemoryStore) -> RevokedKeySet:
    item = await store.get(keys.REVOKED_KEYS)
    return decode(item.value, RevokedKeySet) if item is not None and item.value else RevokedKeySet()


async def test_a_revocation_is_written_with_its_audit_entry() -> None:
    store = MemoryStore()
    async with running(store) as one:
        entry, is_new = await one.revoke(DUTY, ONE, "leaked")
        assert (entry.author, entry.reason, is_new) == ("duty", "leaked", True)
        again, is_new = await one.revoke(DUTY, ONE, "again")
        assert (again.reason, again.at > entry.at, is_new) == ("again", True, False)
        assert (await stored(store)).keys == (again,)
        lifted = await one.lift(DUTY, ONE[:16], "a mistake")
        assert lifted.lifted
        assert lifted.at > again.at, "although the clock did not advance"
        assert await one.lift(DUTY, ONE[:16], "again") == lifted
        with pytest.raises(KeyError):
            await one.lift(DUTY, "0" * 16, "unknown")
        assert (await stored(store)).revoked == ()
        log = [entry async for entry in AuditLog(store).entries()]
    assert [entry.action for entry in log] == ["key.revoke", "key.revoke", "key.lift"]
    assert {entry.target for entry in log} == {ONE[:16]}
    assert ONE not in repr(log), "the audit log has no whole digest"


async def test_concurrent_revocations_at_two_control_planes_are_all_kept() -> None:
    store = MemoryStore()
    digests = [f"{number:064x}" for number in range(8)]
    async with running(store) as one, running(store, "b") as other:
        await asyncio.gather(*((one, other)[at % 2].revoke(DUTY, digest, "r") for at, digest in enumerate(digests)))
    assert [entry.digest for entry in (await stored(store)).revoked] == digests


@pytest.mark.parametrize("loss", ["deleted", "forged", "older"])
async def test_the_leader_restores_what_the_store_has_lost(loss: str) -> None:
    store = MemoryStore()
    async with running(store) as one:
        await one.revoke(DUTY, ONE, "leaked")
        older = encode(await stored(store))
        await one.revoke(DUTY, TWO, "leaked")
        epoch, whole = await leader_epoch(store), await stored(store)
        await one.repair(epoch)
        assert (await AuditLog(store).head()).seq == 2, "nothing is written while nothing is lost"
        lost = {"deleted": Delete(keys.REVOKED_KEYS), "forged": Put(keys.REVOKED_KEYS, b"")}
        await store.commit([], [lost.get(loss, Put(keys.REVOKED_KEYS, older))])
        await until(lambda: _value(one) in (None, b"", older))
        await one.repair(epoch + 1)
        assert await stored(store) != whole, "only the leader repairs"
        await one.repair(epoch)
        assert await stored(store) == whole


async def test_a_repeated_revocation_restores_what_the_store_has_lost() -> None:
    store = MemoryStore()
    async with running(store) as one:
        await one.revoke(DUTY, ONE, "leaked")
        await store.commit([], [Delete(keys.REVOKED_KEYS)])
        await one.revoke(DUTY, ONE, "again")
        assert [entry.digest for entry in (await stored(store)).revoked] == [ONE]


@pytest.mark.parametrize("is_lift", [False, True])
async def test_a_change_applies_to_agents_that_know_a_later_one_than_the_list(is_lift: bool) -> None:
    """A backup that is restored, or a list that is put back, may lack the last change of a key."""
    store = MemoryStore()
    async with running(store) as one:
        await one.revoke(DUTY, ONE, "leaked")
        if is_lift:
            await one.lift(DUTY, ONE, "a mistake")
        older = encode(await stored(store))
        await (one.revoke(DUTY, ONE, "leaked") if is_lift else one.lift(DUTY, ONE, "a mistake"))
        known_to_agents = await stored(store)
    await store.commit([], [Put(keys.REVOKED_KEYS, older)])
    async with running(store, "b", now=2000.0) as other:
        await (other.lift(DUTY, ONE, "a mistake") if is_lift else other.revoke(DUTY, ONE, "leaked again"))
    agents = known_to_agents.merged((await stored(store)).keys)
    assert [entry.lifted for entry in agents.keys] == [is_lift]


async def test_a_key_that_only_agents_know_is_lifted_by_its_digest() -> None:
    store = MemoryStore()
    async with running(store) as one:
        with pytest.raises(KeyError):
            await one.lift(DUTY, ONE[:16], "the store was lost")
        assert (await one.lift(DUTY, ONE, "the store was lost")).lifted
        assert [(entry.digest, entry.lifted) for entry in (await stored(store)).keys] == [(ONE, True)]


async def test_a_value_of_a_newer_release_is_neither_changed_nor_repaired() -> None:
    store = MemoryStore()
    async with running(store) as one:
        await one.revoke(DUTY, ONE, "leaked")
        newer = encode(RevokedKeySet((RevokedKey(TWO, 1.0, "a", "r"),))).replace(b'"version":1', b'"version":2')
        await store.commit([], [Put(keys.REVOKED_KEYS, newer)])
        await until(lambda: _value(one) == newer)
        await one.repair(await leader_epoch(store))
        with pytest.raises(StoreError, match="revoked-keys cannot be read, so it cannot be changed"):
            await one.revoke(DUTY, TWO, "leaked")
        item = await store.get(keys.REVOKED_KEYS)
        assert item is not None
        assert item.value == newer
        assert one.known.find(ONE) is not None


def _value(one: KeyRevocationStore) -> bytes | None:
    item = one.informer.items.get(keys.REVOKED_KEYS)
    return None if item is None else item.value
