"""The index of created tenants: look-ups by key, identifier and name, and what a change invalidates."""

from __future__ import annotations

from hashlib import sha256

import pytest

from penstock.policy.kinds.tenants import Tenant
from penstock.tenancy.created_tenants.shard_merge import DELETED_KEPT_S
from penstock.tenancy.tenant_record import TenantShard, shard_of
from regional_agent.tenants import tenant_index
from regional_agent.tenants.principal import Principal
from regional_agent.tenants.tenant_index import TenantIndex
from tests.support.created_tenants import NOW, created, created_key, put, remove


def digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def key_id(secret: str) -> str:
    return digest(secret).hex()[:16]


def test_a_tenant_is_found_by_its_keys_and_by_its_name() -> None:
    index, acme = TenantIndex(), created("acme", "one", "two")
    put(index, acme, created("other", "three"))
    assert (index.tenants, index.keys) == (2, 3)
    found = index.find_key(digest("two"))
    assert found == (acme, created_key("two"))
    assert index.find_id(key_id("two")) == found
    assert index.find_tenant("acme") == acme
    assert index.find_key(digest("four")) is index.find_id("x" * 16) is index.find_id("") is None
    assert index.find_tenant("nobody") is None


def test_a_changed_tenant_has_other_keys_and_a_deleted_one_none() -> None:
    index = TenantIndex()
    put(index, created("acme", "one", "two"))
    put(index, created("acme", "two", "three"))
    assert (index.tenants, index.keys) == (1, 2)
    assert index.find_key(digest("one")) is None
    assert index.is_withdrawn(key_id("one"))
    assert not index.is_withdrawn(key_id("two"))
    remove(index, "acme")
    assert (index.tenants, index.find_tenant("acme")) == (0, None)
    deleted = index.find_key(digest("three"))
    assert deleted is not None
    assert deleted.key.revoked_at is not None
    # The record is removed later, and the keys are still known to have been withdrawn.
    other = next(name for name in map(str, range(100_000)) if shard_of(name) == shard_of("acme"))
    put(index, created(other, changed_at=NOW + 2 * DELETED_KEPT_S))
    assert (index.tenants, index.keys) == (1, 0)
    assert index.is_withdrawn(key_id("three"))


def test_an_older_shard_makes_no_revoked_key_valid() -> None:
    index, revoked = TenantIndex(), created_key("one", revoked_at=5.0)
    put(index, created("acme", revoked))
    put(index, created("acme", "one", "two"))
    acme = index.find_tenant("acme")
    assert acme is not None
    assert acme.keys == (revoked, created_key("two"))


def test_only_a_change_of_its_tenant_invalidates_a_principal() -> None:
    index = TenantIndex()
    put(index, created("acme", "one"), created("other", "two"))
    acme = Principal(Tenant("acme", "open"), version=index.version)
    put(index, created("other", "three"))
    assert acme.version != index.version
    assert index.confirms(acme)
    assert acme.version == index.version
    put(index, created("acme", "one", note="changed"))
    assert not index.confirms(acme)
    version = index.version
    put(index, created("acme", "one", note="changed"))
    assert index.version == version, "an equal shard is no change"


def test_the_memory_of_changes_is_bounded_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_index, "MAX_CHANGED", 3)
    monkeypatch.setattr(tenant_index, "MAX_WITHDRAWN", 3)
    index = TenantIndex()
    principal = Principal(Tenant("t0", "open"))
    for number in range(10):
        put(index, created(f"t{number}", f"key-{number}"))
        put(index, created(f"t{number}"))
    assert not index.confirms(principal)
    assert not index.is_withdrawn(key_id("key-0"))
    assert index.is_withdrawn(key_id("key-9"))


def test_tenants_of_one_shard_are_kept_apart() -> None:
    first = next(name for name in map(str, range(10_000)) if shard_of(name) == 0)
    second = next(name for name in map(str, range(10_000)) if shard_of(name) == 0 and name != first)
    index = TenantIndex()
    index.put(0, TenantShard((created(first, "one"), created(second, "two"))))
    found = index.find_key(digest("two"))
    assert found is not None
    assert found.tenant.name == second
