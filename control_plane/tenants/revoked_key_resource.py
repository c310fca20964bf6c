"""Revoked keys as the API and the CLI show them: by identifier, never with the whole digest."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.policy.policy import Policy
from penstock.policy.revoked_keys import RevokedKey


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
