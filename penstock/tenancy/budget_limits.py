"""The limits of a budget, from policy and the records of tenants."""

from __future__ import annotations

from penstock.policy.kinds.budgets import Budget
from penstock.policy.kinds.issuers import ISSUER_SEPARATOR
from penstock.policy.kinds.tenants import Tenant, Tier
from penstock.policy.policy import Policy
from penstock.tenancy.budget_lease import BudgetKey, keyed_budgets
from penstock.tenancy.tenant_record import TenantRecord


def budget_of(key: BudgetKey, policy: Policy, record: TenantRecord | None, tier_of_token: str = "") -> Budget | None:
    """Return the limits of a budget; None if nothing limits what the key names.

    Args:
        policy: the policy in force. A tenant of the policy wins over a record with its name.
        record: the record of the tenant; None for a tenant of the policy.
        tier_of_token: the tier that agents report of an identity provider's own tenant.
    """
    if key.region and key.region not in policy.regions:
        return None
    tenant = policy.tenants.get(key.tenant)
    if tenant is None and record is not None and (tier := policy.tier(record.tier)) is not None:
        tenant = record.under(tier)
    if tenant is None and record is None and (tier := _tier_by_token(key.tenant, policy, tier_of_token)) is not None:
        tenant = tenant_of_tier(key.tenant, tier)
    if tenant is None:
        return None
    if not key.key_id:
        return keyed_budgets(key.tenant, "", tenant.budgets, key.region).get(key)
    keys = () if record is None else record.keys
    budgets = next((each.budgets for each in keys if each.budget_key == key.key_id), ())
    return keyed_budgets(key.tenant, key.key_id, budgets, key.region).get(key)


def tenant_of_tier(name: str, tier: Tier) -> Tenant:
    """Return an identity provider's own tenant, which has no document and no record."""
    return Tenant(name, tier.data_class, tier=tier.name).under(tier)


def reported_tier(tenant: Tenant) -> str:
    """Return the tier that agents report with the budgets of a tenant: of an identity provider's own tenants only."""
    return tenant.tier if tenant.tier and ISSUER_SEPARATOR in tenant.name else ""


def _tier_by_token(tenant: str, policy: Policy, tier: str) -> Tier | None:
    """Return the tier that tokens may give a tenant; None if no identity provider may."""
    name, separator, _ = tenant.partition(ISSUER_SEPARATOR)
    issuer = (policy.issuers or {}).get(name) if separator else None
    if issuer is None or issuer.tenants is not None or tier not in (issuer.tier, *issuer.tiers):
        return None
    return policy.tier(tier)
