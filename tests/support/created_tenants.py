"""Tenants as the API creates them, and their shards."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from penstock.policy.kinds.tenants import Tier
from penstock.tenancy.tenant_record import TenantKey, TenantRecord, TenantShard, shard_of
from regional_agent.tenants.tenant_index import TenantIndex

NOW = 1000.0

GOLD = Tier("gold", "open", priority=3)
SILVER = Tier("silver", "personal", models=("small-*",))
TIERS = {tier.name: tier for tier in (GOLD, SILVER)}


def created_key(secret: str, **fields: Any) -> TenantKey:
    """The key with a secret, created at time 0."""
    return TenantKey(f"psk-{secret}", sha256(secret.encode()).digest(), 0.0, **fields)


def created(name: str, *keys: TenantKey | str, tier: str = "gold", **fields: Any) -> TenantRecord:
    """A tenant with keys, created at time 0."""
    return TenantRecord(
        name,
        tier,
        0.0,
        tuple(created_key(key) if isinstance(key, str) else key for key in keys),
        **fields,
    )


def put(index: TenantIndex, *tenants: TenantRecord) -> None:
    """Create tenants, or replace those of the same names."""
    for tenant in tenants:
        index.put(shard_of(tenant.name), TenantShard((tenant,)))


def remove(index: TenantIndex, name: str) -> None:
    """Delete a tenant as the API does: with its keys revoked."""
    tenant = index.find_tenant(name)
    assert tenant is not None
    keys = tuple(replace(key, revoked_at=NOW) for key in tenant.keys)
    put(index, replace(tenant, keys=keys, changed_at=NOW, deleted_at=NOW))
