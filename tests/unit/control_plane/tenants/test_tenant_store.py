"""Tenants in the store: concurrent changes, lost and forged shards, and values of a newer release."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from msgspec.structs import replace

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import decode, encode
from adapters.store.config_store import ConfigStore, Delete, Put, StoreError
from adapters.store.signed_store import SignedStore
from adapters.store.store_backup import restore_backup, take_backup
from control_plane.audit.audit_log import AuditLog
from control_plane.tenants import tenant_store
from control_plane.tenants.tenant_store import TenantAction, TenantStore
from lab.memory_store import MemoryStore
from penstock.tenancy.created_tenants.tenant_changes import (
    Edit,
    TenantConflict,
    created,
    deleted,
    existing,
    with_key,
    with_revoked_key,
)
from penstock.tenancy.tenant_record import TenantKey, TenantRecord, TenantShard, key_digest, shard_of
from regional_agent.tenants.tenant_index import TenantIndex
from tests.support.identities import control_plane_keyring
from tests.support.stores import leader_epoch
from tests.support.wait import until

DUTY = Caller("duty", Role.OPERATOR)
NUMBER = shard_of("acme")
SHARD = keys.tenant_shard(NUMBER)
KEY = TenantKey("psk-000000000001", key_digest("secret"), 1000.0)


@asynccontextmanager
async def running(store: ConfigStore, name: str = "a", now: float = 1000.0) -> AsyncIterator[TenantStore]:
    made = TenantStore(store, AuditLog(store), name, rng=Random(1), clock=lambda: now)
    made.informer.start()
    await made.informer.wait_synced()
    try:
        yield made
    finally:
        await made.informer.stop()


def creating(name: str = "acme", tier: str = "gold") -> tuple[TenantAction, Edit]:
    wanted = TenantRecord(name, tier, 1000.0)
    return TenantAction(DUTY, "tenant.create", name, "new"), lambda before, now: created(before, wanted)


def adding(key: TenantKey, name: str = "acme") -> tuple[TenantAction, Edit]:
    action = TenantAction(DUTY, "key.create", name, "", key.id)
    return action, lambda before, now: with_key(existing(before, name), key, now)


def revoking(key: TenantKey = KEY, name: str = "acme") -> tuple[TenantAction, Edit]:
    action = TenantAction(DUTY, "key.revoke", name, "leaked", key.id)
    return action, lambda before, now: with_revoked_key(existing(before, name), key.id, now)


async def stored(store: MemoryStore) -> TenantShard:
    item = await store.get(SHARD)
    return decode(item.value, TenantShard) if item is not None and item.value else TenantShard()


def _value(one: TenantStore) -> bytes | None:
    item = one.informer.items.get(SHARD)
    return None if item is None else item.value


async def test_each_change_is_written_with_its_audit_entry_and_without_digests() -> None:
    store = MemoryStore()
    async with running(store) as one:
        first = await one.change(*creating())
        assert await one.change(*creating()) == first, "a repeated request changes nothing"
        await one.change(*adding(KEY))
        await one.change(*revoking())
        again = await one.change(*revoking())
        assert (again.keys[0].revoked_at, again.changed_at) == (1000.0, 1000.002), "although the clock stands still"
        assert one.owner_of(KEY.digest) == (again, again.keys[0])
        assert await one.read("acme") == again == one.find("acme")
        log = [entry async for entry in AuditLog(store).entries()]
    assert [(entry.action, entry.target) for entry in log] == [
        ("tenant.create", "acme"),
        ("key.create", KEY.id),
        ("key.revoke", KEY.id),
    ]
    assert [key["revoked_at"] for side in (log[-1].before, log[-1].after) for key in side["changed_keys"]] == [
        None,
        1000.0,
    ]
    assert KEY.digest.hex() not in repr(log)


async def test_concurrent_changes_at_two_control_planes_are_all_kept() -> None:
    store = MemoryStore()
    async with running(store) as one, running(store, "b") as other:
        await one.change(*creating())
        added = [replace(KEY, id=f"psk-{number:012x}", digest=bytes([number] * 32)) for number in range(8)]
        await asyncio.gather(*((one, other)[at % 2].change(*adding(key)) for at, key in enumerate(added)))
        assert sorted(key.id for key in (await stored(store)).tenants[0].keys) == [key.id for key in added]
        await until(lambda: one.find("acme") == other.find("acme"))


@pytest.mark.parametrize("loss", ["deleted", "forged", "older"])
async def test_the_leader_restores_what_the_store_has_lost(loss: str) -> None:
    store = MemoryStore()
    async with running(store) as one:
        await one.change(*creating())
        await one.change(*adding(KEY))
        older = encode(await stored(store))
        await one.change(*revoking())
        epoch, whole = await leader_epoch(store), await stored(store)
        await until(lambda: _value(one) == encode(whole))
        await one.repair(epoch)
        assert (await AuditLog(store).head()).seq == 3, "nothing is written while nothing is lost"
        lost = {"deleted": Delete(SHARD), "forged": Put(SHARD, b"")}
        await store.commit([], [lost.get(loss, Put(SHARD, older))])
        await until(lambda: _value(one) in (None, b"", older))
        await one.repair(epoch + 1)
        assert await stored(store) != whole, "only the leader repairs"
        await one.repair(epoch)
        assert await stored(store) == whole
        head = (await AuditLog(store).head()).seq
        await until(lambda: _value(one) == encode(whole))
        await one.repair(epoch)
        assert (await AuditLog(store).head()).seq == head


async def test_a_change_restores_what_the_store_has_lost() -> None:
    store = MemoryStore()
    async with running(store) as one:
        await one.change(*creating())
        await store.commit([], [Delete(SHARD)])
        await one.change(*adding(KEY))
        assert (await stored(store)).tenants[0].keys == (KEY,)


async def test_a_forged_shard_is_not_overwritten_by_a_control_plane_that_does_not_know_its_tenants() -> None:
    store = MemoryStore()
    await store.commit([], [Put(SHARD, b"")])
    async with running(store) as one:
        with pytest.raises(StoreError, match="not signed by a process of this fleet"):
            await one.change(*creating())
        await one.repair(await leader_epoch(store))
    assert (await store.get(SHARD)).value == b""  # type: ignore[union-attr]


async def test_a_shard_of_a_newer_release_is_neither_changed_nor_repaired() -> None:
    store = MemoryStore()
    async with running(store) as one:
        await one.change(*creating())
        newer = encode(TenantShard()).replace(b'"version":1', b'"version":2')
        await store.commit([], [Put(SHARD, newer)])
        await until(lambda: _value(one) == newer)
        await one.repair(await leader_epoch(store))
        with pytest.raises(StoreError, match="cannot be read, so it cannot be changed"):
            await one.change(*adding(KEY))
        assert (await store.get(SHARD)).value == newer  # type: ignore[union-attr]
        assert one.find("acme") is not None


async def test_the_number_of_tenants_and_the_size_of_a_shard_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(tenant_store, "MAX_TENANTS", 1)
    async with running(store) as one:
        await one.change(*creating())
        with pytest.raises(TenantConflict, match="there are 1 tenants, the maximum"):
            await one.change(*creating("other"))
        gone = TenantAction(DUTY, "tenant.delete", "acme", "left")
        await one.change(gone, lambda before, now: deleted(existing(before, "acme"), now))
        assert (one.count, one.find("acme"), await one.read("acme"), list(one.tenants())) == (0, None, None, [])
        await one.change(*creating("other"))
        assert one.count == 1
        note = TenantAction(DUTY, "tenant.change", "other", "")
        with pytest.raises(TenantConflict, match="is full"):
            await one.change(note, lambda before, now: replace(existing(before, "other"), note="x" * 2_000_000))


async def test_a_restored_backup_does_not_make_a_revoked_key_valid_where_the_revocation_is_known() -> None:
    store = MemoryStore()
    async with running(store) as one:
        await one.change(*creating())
        await one.change(*adding(KEY))
        backup = encode(await stored(store))
        await one.change(*revoking())
        await store.commit([], [Put(SHARD, backup)])
        changed = TenantAction(DUTY, "tenant.change", "acme", "")
        after = await one.change(changed, lambda before, now: replace(existing(before, "acme"), note="restored"))
    assert after.keys[0].revoked_at is not None


async def test_an_agent_and_a_new_control_plane_after_the_restore_of_an_older_backup() -> None:
    """The control planes were stopped for the restore and know only the backup; the agent knows the revocation."""
    memory, agent = MemoryStore(), TenantIndex()
    store = SignedStore(memory, control_plane_keyring())
    await store.commit([], [Put(keys.FLEET, b"a")])
    async with running(store) as one:
        for change in (creating(), adding(KEY), creating("other")):
            await one.change(*change)
        saved = await take_backup(
            memory, fleet="test", prefix=keys.DEFAULT_PREFIX, taken_at="2030-01-01T12:00:00+00:00"
        )
        await one.change(*revoking())
        await one.change(*creating("later"))
        for number in {shard_of(name) for name in ("acme", "other", "later")}:
            agent.put(number, decode((await store.get(keys.tenant_shard(number))).value, TenantShard))  # type: ignore[union-attr]
    await restore_backup(memory, saved, control_plane_keyring(), prefix=keys.DEFAULT_PREFIX, force=True)
    async with running(SignedStore(memory, control_plane_keyring()), "b", now=2000.0) as restored:
        assert sorted(record.name for record in restored.tenants()) == ["acme", "other"]
        await restored.change(*adding(replace(KEY, id="psk-2", digest=key_digest("second"))))
        for number in {shard_of(name) for name in ("acme", "other")}:
            agent.put(number, decode((await store.get(keys.tenant_shard(number))).value, TenantShard))  # type: ignore[union-attr]
    revoked, second = agent.find_key(KEY.digest), agent.find_key(key_digest("second"))
    assert revoked is not None
    assert revoked.key.revoked_at is not None
    assert second is not None
    assert agent.find_tenant("later") is not None
