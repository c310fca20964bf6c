"""The limits of a budget, from policy and the records of tenants."""

from __future__ import annotations

from penstock.policy.kinds.budgets import Budget
from penstock.policy.policy import Policy
from penstock.tenancy.budget_lease import BudgetKey, keyed_budgets
from penstock.tenancy.tenant_record import TenantRecord


def budget_of(key: BudgetKey, policy: Policy, record: TenantRecord | None) -> Budget | None:
    """Return the limits of a budget; None if nothing limits what the key names.

    Args:
        policy: the policy in force. A tenant of the policy wins over a record with its name.
        record: the record of the tenant; None for a tenant of the policy.
    """
    if key.region and key.region not in policy.regions:
        return None
    tenant = policy.tenants.get(key.tenant)
    if tenant is None and record is not None and (tier := policy.tier(record.tier)) is not None:
        tenant = record.under(tier)
    if tenant is None:
        return None
    if not key.key_id:
        return keyed_budgets(key.tenant, "", tenant.budgets, key.region).get(key)
    keys = () if record is None else record.keys
    budgets = next((each.budgets for each in keys if each.id == key.key_id), ())
    return keyed_budgets(key.tenant, key.key_id, budgets, key.region).get(key)
