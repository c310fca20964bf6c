"""Tenants, their keys and revoked keys as the API and the CLI show them: by identifier, never with whole digests."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256

import msgspec

from penstock.policy.kinds.budgets import Budget
from penstock.policy.kinds.tenants import Quota, Tenant
from penstock.policy.policy import Policy
from penstock.policy.revoked_keys import RevokedKey
from penstock.tenancy.budget_lease import MONEY
from penstock.tenancy.tenant_record import TenantKey, TenantRecord


class TenantSource(StrEnum):
    """Where a tenant is defined."""

    POLICY = "policy"
    """In the policy bundle, which alone can change it."""
    API = "api"


class TenantView(msgspec.Struct, frozen=True):
    """A tenant without its secrets."""

    name: str
    data_class: str
    """Class of the data in the tenant's requests; residency rules match it. Empty: the policy lacks the tier."""
    priority: int
    """Requests of higher priority are served first when requests have to wait."""
    quota: Quota | None
    """Limits of the tenant in each origin region; null: no limit."""
    keys: int
    """Number of API keys, without those that are revoked or expired."""
    anonymous: bool
    """Whether requests without an API key belong to this tenant."""
    source: TenantSource = TenantSource.POLICY
    tier: str | None = None
    """Tier whose rules the tenant has; null: none."""
    budgets: tuple[Budget, ...] = ()
    """Limits of the tenant itself."""
    tier_budgets: tuple[Budget, ...] = ()
    """Limits that the tenant has from its tier and its quota."""
    suspended: bool = False
    """Whether all requests of the tenant are refused."""
    note: str = ""
    created_at: float | None = None
    """Unix time (s); null for a tenant of the policy."""
    problem: str | None = None
    """Why the tenant's requests are refused, or what has no effect; null: no problem."""


class KeyState(StrEnum):
    """Whether agents accept a key."""

    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


class TenantKeyView(msgspec.Struct, frozen=True):
    """An API key of a tenant, without the key."""

    id: str
    """Beginning of the key. Of a key in the policy: the first 16 hexadecimal digits of its SHA-256."""
    tenant: str
    state: KeyState
    created_at: float | None
    """Unix time (s); null for a key in the policy."""
    expires_at: float | None = None
    """Unix time (s) from which the key is refused; null: never."""
    revoked_at: float | None = None
    """Unix time (s) of the revocation; null: not revoked."""
    note: str = ""
    budgets: tuple[Budget, ...] = ()
    """Limits of the key, besides those of its tenant."""


class NewTenantKey(msgspec.Struct, frozen=True):
    """A key that was created, with the key itself."""

    key: str
    """The API key. No other response contains it, and it cannot be read again. Empty for a dry run."""
    view: TenantKeyView
    replaced: TenantKeyView | None = None
    """The key that was rotated, with the time at which it expires; null for a new key."""


def digest(record: TenantRecord) -> str:
    """Return the ETag of a tenant's state."""
    return sha256(msgspec.json.encode(record, order="deterministic")).hexdigest()[:32]


def created_view(record: TenantRecord, policy: Policy | None, now: float) -> TenantView:
    """Return the view of a tenant that the API created, under the policy in force.

    Args:
        now: Unix time, in seconds.
    """
    tier = policy.tier(record.tier) if policy is not None else None
    budgets = (*record.budgets, *(budget for key in record.keys for budget in key.budgets))
    problem = None
    if tier is None:
        problem = f"the policy in force has no tier {record.tier}: all requests are refused"
    elif any(budget.unit in MONEY for budget in (*budgets, *tier.budgets)) and not (policy and policy.prices):
        problem = "budgets of money limit nothing, since the policy in force has no prices"
    return TenantView(
        name=record.name,
        data_class=tier.data_class if tier is not None else "",
        priority=tier.priority if tier is not None else 0,
        quota=None,
        keys=sum(key.is_valid(now) for key in record.keys),
        anonymous=False,
        source=TenantSource.API,
        tier=record.tier,
        budgets=record.budgets,
        tier_budgets=tier.budgets if tier is not None else (),
        suspended=record.is_suspended,
        note=record.note,
        created_at=record.created_at,
        problem=problem,
    )


def policy_view(tenant: Tenant, *, is_anonymous: bool, hides: bool) -> TenantView:
    """Return the view of a tenant of the policy.

    Args:
        is_anonymous: whether requests without an API key belong to the tenant.
        hides: whether the API has created a tenant of the same name, which is without effect.
    """
    return TenantView(
        name=tenant.name,
        data_class=tenant.data_class,
        priority=tenant.priority,
        quota=tenant.quota,
        keys=len(tenant.key_digests),
        anonymous=is_anonymous,
        tier=tenant.tier or None,
        tier_budgets=tenant.budgets,
        problem="a tenant of this name that the API created is without effect: delete it" if hides else None,
    )


def key_view(tenant: str, key: TenantKey, now: float) -> TenantKeyView:
    """Return the view of a key of a tenant that the API created.

    Args:
        now: Unix time, in seconds.
    """
    if key.revoked_at is not None:
        state = KeyState.REVOKED
    else:
        state = KeyState.VALID if key.is_valid(now) else KeyState.EXPIRED
    return TenantKeyView(key.id, tenant, state, key.created_at, key.expires_at, key.revoked_at, key.note, key.budgets)


class RevokedKeyView(msgspec.Struct, frozen=True):
    """One revoked API key."""

    id: str
    """Identifier of the key: the first 16 hexadecimal digits of its SHA-256."""
    tenant: str | None
    """Tenant that has the key in the policy in force; null: none has it."""
    revoked_at: float
    """Unix time (s) of the revocation."""
    author: str
    reason: str


def revoked_key_views(entries: Iterable[RevokedKey], policy: Policy | None) -> tuple[RevokedKeyView, ...]:
    """Return the views of entries under the policy in force."""
    tenants = policy.tenants.values() if policy is not None else ()
    owners = {digest: tenant.name for tenant in tenants for digest in tenant.key_digests}
    return tuple(
        RevokedKeyView(entry.id, owners.get(entry.digest), entry.at, entry.author, entry.reason) for entry in entries
    )
