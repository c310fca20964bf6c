"""A backup of the store: its content, and which backups and stores are rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.store import keys
from adapters.store.config_store import Put
from adapters.store.signed_store import SignedStore
from adapters.store.store_backup import (
    Backup,
    BadBackup,
    RestoreRefused,
    read_backup,
    restore_backup,
    take_backup,
    write_backup,
)
from lab.memory_store import MemoryStore
from tests.support.identities import control_plane_keyring
from tests.support.stores import put

PREFIX = "/fleets/one/"
NOON = "2030-01-01T12:00:00+00:00"


async def filled(store: MemoryStore, keys_and_values: dict[str, bytes]) -> SignedStore:
    """The store with the fleet's key, values that it signed, and one that has a lease."""
    signed = SignedStore(store, control_plane_keyring(), prefix=PREFIX)
    lease = await store.grant_lease(60)
    await signed.commit([], [Put(keys.agent("eu", "agent-1"), b"lives", lease), Put(keys.FLEET, b"a")])
    for key, value in keys_and_values.items():
        await put(signed, key, value)
    await put(store, "/fleets/two/v1/fleet", b"another")
    return signed


async def backup_of(store: MemoryStore) -> Backup:
    return await take_backup(store, fleet="test", prefix=PREFIX, taken_at=NOON)


async def restore(
    store: MemoryStore, saved: Backup, *, prefix: str = PREFIX, force: bool = False
) -> tuple[int, list[str]]:
    return await restore_backup(store, saved, control_plane_keyring(), prefix=prefix, force=force)


async def test_a_backup_restores_every_key_without_a_lease_under_another_prefix(tmp_path: Path) -> None:
    old, new = MemoryStore(), MemoryStore()
    many = {keys.journal_entry(number): b"x" * 20_000 for number in range(130)}
    await filled(old, {**many, keys.policy("p"): b"y" * 1_100_000})
    write_backup(await backup_of(old), tmp_path / "backup")
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600

    saved = read_backup(tmp_path / "backup")
    assert (saved.fleet, saved.prefix, saved.taken_at) == ("test", PREFIX, NOON)
    assert await restore(new, saved, prefix="/other/") == (0, [])
    restored = await SignedStore(new, control_plane_keyring(), prefix="/other/").list(keys.ROOT)
    assert {item.key: item.value for item in restored.items} == {
        **many,
        keys.policy("p"): b"y" * 1_100_000,
        keys.FLEET: b"a",
    }
    assert (await new.list("/fleets/")).items == ()


async def test_keys_of_the_fleet_are_replaced_only_with_force(tmp_path: Path) -> None:
    store = MemoryStore()
    signed = await filled(store, {keys.OVERRIDES: b"old"})
    saved = await backup_of(store)
    await put(signed, keys.OVERRIDES, b"new")
    await put(signed, keys.ROLLOUT, b"begun since")
    before = await store.list("/")
    with pytest.raises(RestoreRefused, match="has 3 keys of the fleet under /fleets/one/; restore with --force"):
        await restore(store, saved)
    assert await store.list("/") == before

    assert await restore(store, saved, force=True) == (3, [])
    reader = SignedStore(store, control_plane_keyring(), prefix=PREFIX)
    assert {item.key: item.value for item in (await reader.list(keys.ROOT)).items} == {
        keys.agent("eu", "agent-1"): b"",  # not signed by an agent, so read as empty
        keys.FLEET: b"a",
        keys.OVERRIDES: b"old",
    }


@pytest.mark.parametrize("key", [keys.LEADER, keys.control_plane("b")])
async def test_a_store_that_a_control_plane_uses_is_not_changed(key: str) -> None:
    store = MemoryStore()
    signed = await filled(store, {})
    saved = await backup_of(store)
    await signed.commit([], [Put(key, b"b", await store.grant_lease(60))])
    before = await store.list("/")
    with pytest.raises(RestoreRefused, match=r"a control plane uses the store \(v1/.*; stop every control plane"):
        await restore(store, saved, force=True)
    assert await store.list("/") == before


async def test_the_backup_of_another_fleet_is_refused() -> None:
    store = MemoryStore()
    await filled(store, {})
    saved = await backup_of(store)
    with pytest.raises(RestoreRefused, match=r"the backup is of another fleet \(test\)"):
        await restore_backup(MemoryStore(), saved, control_plane_keyring(fleet=1), prefix=PREFIX, force=True)
    with pytest.raises(RestoreRefused, match="the backup is of another fleet"):
        await restore(MemoryStore(), await backup_of(MemoryStore()))


async def test_values_that_the_fleet_did_not_sign_are_named() -> None:
    store = MemoryStore()
    await filled(store, {})
    await put(store, PREFIX + "v1/overrides", b"forged")
    new = MemoryStore()
    assert await restore(new, await backup_of(store)) == (0, [keys.OVERRIDES])
    item = await SignedStore(new, control_plane_keyring(), prefix=PREFIX).get(keys.OVERRIDES)
    assert item is not None
    assert not item.value, "the key stays, so that a control plane does not plan as if there were no overrides"


async def test_a_damaged_file_and_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    with pytest.raises(BadBackup, match="cannot be read: No such file"):
        read_backup(path)
    write_backup(await backup_of(MemoryStore()), path)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"2030", b"2031"))
    with pytest.raises(BadBackup, match="damaged: its checksum does not match"):
        read_backup(path)
    path.write_text(json.dumps({**json.loads(whole), "format": 2, "backup": "unlike this one"}))
    with pytest.raises(BadBackup, match="has format 2, this release reads 1"):
        read_backup(path)
    for garbage in (b"", b"[" * 100_000, whole[:-5], b"\xff"):
        path.write_bytes(garbage)
        with pytest.raises(BadBackup, match="not a backup"):
            read_backup(path)


async def test_a_fleet_whose_prefix_begins_with_that_of_the_backup_is_left_alone() -> None:
    store, inner = MemoryStore(), PREFIX + "staging/"
    await filled(store, {})
    await SignedStore(store, control_plane_keyring(), prefix=inner).commit([], [Put(keys.FLEET, b"staging")])
    before = (await store.list(inner)).items
    saved = await backup_of(store)
    assert {entry.key for entry in saved.entries} == {"v1/fleet"}
    assert await restore(store, saved, force=True) == (1, [])
    assert (await store.list(inner)).items == before
