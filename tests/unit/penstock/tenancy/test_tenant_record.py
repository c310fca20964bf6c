"""Records of tenants: their rules under a tier, the validity of keys, and the division into shards."""

from __future__ import annotations

from base64 import urlsafe_b64decode

import msgspec

from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit
from penstock.policy.kinds.tenants import Quota, Tenant, Tier
from penstock.tenancy.tenant_record import RecordBudget, TenantKey, TenantRecord, TenantShard, new_key, shard_of

ID_BYTES, SECRET_BYTES, SHARDS = 6, 32, 1024
"""As documented, and not imported: a test fails if a tuned constant changes."""

GOLD = Tier(
    "gold", "personal", priority=3, weight=2.0, models=("chat-*",), budgets=(Budget(BudgetUnit.OUTPUT_TOKENS, 1e6),)
)


def test_a_created_tenant_has_the_rules_of_its_tier_and_its_own_budgets() -> None:
    own = RecordBudget(BudgetUnit.REQUESTS, 60.0)
    tenant = TenantRecord("acme", "gold", 0.0, budgets=(own,)).under(GOLD)
    assert (tenant.name, tenant.data_class, tenant.priority, tenant.weight) == ("acme", "personal", 3, 2.0)
    assert tenant.models == ("chat-*",)
    assert tenant.budgets == (*GOLD.budgets, own)


def test_a_quota_is_the_short_form_of_budgets_per_region() -> None:
    tenant = Tenant("acme", "personal", quota=Quota(2.0, 5, 3))
    assert tenant.budgets == (
        Budget(BudgetUnit.REQUESTS, 120.0, BudgetScope.REGION, burst=5.0),
        Budget(BudgetUnit.CONCURRENT_REQUESTS, 3.0, BudgetScope.REGION),
    )
    assert tenant.weight == 1.0
    assert tenant.models is None


def test_a_key_is_valid_until_it_expires_or_is_revoked() -> None:
    key = TenantKey("psk-1", b"", 0.0, expires_at=10.0)
    assert key.is_valid(9.9)
    assert not key.is_valid(10.0)
    assert not TenantKey("psk-1", b"", 0.0, revoked_at=1.0).is_valid(0.5)


def test_a_new_key_begins_with_its_identifier_and_contains_all_random_bytes() -> None:
    random = bytes(range(ID_BYTES + SECRET_BYTES))
    id, key = new_key(random)
    assert id == "psk-000102030405"
    assert key.startswith(id + "-")
    assert urlsafe_b64decode(key.removeprefix(id + "-") + "=") == random[ID_BYTES:]


def test_tenants_are_spread_over_all_shards() -> None:
    shards = [shard_of(f"tenant-{number}") for number in range(50_000)]
    assert set(shards) == set(range(SHARDS))
    assert max(shards.count(number) for number in range(0, SHARDS, 100)) < 2.0 * 50_000 / SHARDS


def test_a_budget_of_a_newer_release_does_not_hide_the_revocations_of_its_shard() -> None:
    newer = (
        b'{"tenants":[{"name":"acme","tier":"gold","created_at":0.0,"keys":[{"id":"psk-1","digest":"","created_at":0.0,'
    )
    newer += b'"revoked_at":1.0}],"budgets":[{"unit":"tokens_per_minute","limit":5,"of_each_user":true}]}]}'
    (record,) = msgspec.json.decode(newer, type=TenantShard).tenants
    assert record.budgets == (RecordBudget(BudgetUnit.TOKENS, 5.0),)
    assert record.keys[0].revoked_at == 1.0
