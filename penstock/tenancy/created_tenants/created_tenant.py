"""The tenant that requests see of a record, under a policy."""

from __future__ import annotations

from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.tenant_record import TenantRecord


def tenant_under(policy: Policy, record: TenantRecord) -> Tenant | Refusal:
    """Return a tenant that the API created, with the rules of its tier, or the refusal of its requests."""
    if record.is_suspended:
        return Refusal(Reason.TENANT_SUSPENDED, f"tenant {record.name} is suspended", tenant=record.name)
    tier = policy.tier(record.tier)
    if tier is None:
        why = f"the policy in force has no tier {record.tier!r}, which the tenant has"
        return Refusal(Reason.TIER_UNKNOWN, why, tenant=record.name)
    return record.under(tier)
