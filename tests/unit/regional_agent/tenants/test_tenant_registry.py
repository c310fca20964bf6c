"""The registry of created tenants: what it follows in the store, and what it starts with from disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore, Delete, Put
from lab.memory_store import MemoryStore
from penstock.tenancy.tenant_record import TenantRecord, TenantShard, shard_of
from regional_agent.config.last_known_good import StateFile
from regional_agent.tenants.tenant_registry import TenantRegistry
from tests.support.created_tenants import created
from tests.support.wait import until

Start = Callable[[ConfigStore], TenantRegistry]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    registries: list[TenantRegistry] = []

    def start(store: ConfigStore) -> TenantRegistry:
        registry = TenantRegistry(store, tmp_path, Random(1))
        registry.start()
        registries.append(registry)
        return registry

    yield start
    for registry in registries:
        await registry.stop()


async def publish(store: ConfigStore, *tenants: TenantRecord) -> None:
    for tenant in tenants:
        await store.commit((), (Put(keys.tenant_shard(shard_of(tenant.name)), encode(TenantShard((tenant,)))),))


def has(registry: TenantRegistry, *secrets: str) -> bool:
    return all(registry.index.find_key(sha256(secret.encode()).digest()) for secret in secrets)


async def test_changes_in_the_store_are_followed(start: Start) -> None:
    store = MemoryStore()
    await publish(store, created("acme", "one"))
    registry = start(store)
    await registry.wait_read()
    assert has(registry, "one")
    await publish(store, created("acme", "two"), created("other", "three"))
    await until(lambda: has(registry, "two", "three"))
    assert not has(registry, "one")
    status = registry.status()
    assert (status["count"], status["keys"]) == (2, 2)
    assert status["age_s"] >= 0.0


@pytest.mark.parametrize("value", [b"", b"{}", b'{"version":9,"kind":"TenantShard","value":{}}', None], ids=str)
async def test_a_lost_or_forged_shard_changes_nothing(start: Start, value: bytes | None) -> None:
    store = MemoryStore()
    await publish(store, created("acme", "one"))
    registry = start(store)
    await registry.wait_read()
    key = keys.tenant_shard(shard_of("acme"))
    await store.commit((), (Delete(key) if value is None else Put(key, value),))
    await store.commit((), (Put(keys.TENANTS + "not-a-shard", b"x"), Put(keys.TENANTS + "9999", b"x")))
    await publish(store, created("other", "two"))
    await until(lambda: has(registry, "two"))
    assert has(registry, "one")


async def test_a_start_without_the_store_has_the_last_tenants(start: Start, tmp_path: Path) -> None:
    store = MemoryStore()
    registry = start(store)
    await publish(store, created("acme", "one"), created("other", "two"), created("third", "three"))
    file = tmp_path / "tenants" / f"{shard_of('acme'):04d}"
    others = [tmp_path / "tenants" / f"{shard_of(name):04d}" for name in ("other", "third")]
    await until(lambda: all(StateFile(path, TenantShard).load() is not None for path in (file, *others)))
    await registry.stop()
    file.write_bytes(file.read_bytes()[:-1])
    again = start(MemoryStore())
    assert has(again, "two", "three")
    assert not has(again, "one"), "a damaged file is ignored"
    assert again.status()["count"] == 2
    full = start(store)
    await full.wait_read()
    assert has(full, "one", "two", "three")
