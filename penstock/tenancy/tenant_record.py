"""Tenants that the API creates, and their keys, as they stand in the store.

The records are divided into shards by the digest of the tenant's name, so that a change writes a few kilobytes and an
agent reads one shard again. A shard contains only digests of keys; the key itself is shown once, when it is created.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Final

import msgspec

from penstock.policy.kinds.budgets import Budget
from penstock.policy.kinds.tenants import Tenant, Tier

SHARDS: Final = 1024
"""Number of shards; with 50,000 tenants and 100,000 keys, a shard has 49 tenants and about 15 kB."""

KEY_MARK: Final = "psk"
"""First part of a key that the API creates, by which scanners for leaked secrets can find it."""

ID_BYTES: Final = 6
"""Random bytes of a key's identifier."""

SECRET_BYTES: Final = 32
"""Random bytes of a key's secret part."""

MAX_KEYS: Final = 64
"""Maximum number of keys of a tenant, revoked and expired ones included."""


class RecordBudget(Budget, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """A budget in a record. A field that a newer release added is ignored, unlike in a policy, because an older process
    must still read the revocations of the shard."""


class TenantKey(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One API key of a tenant. Times are Unix times (s)."""

    id: str
    """Beginning of the key, such as `psk-9f86d081884c`; shown in logs, never secret."""
    digest: bytes
    """SHA-256 of the whole key."""
    created_at: float
    expires_at: float | None = None
    """Time from which the key is refused; None: never."""
    revoked_at: float | None = None
    """Time of the revocation; None: not revoked."""
    note: str = ""
    budgets: tuple[RecordBudget, ...] = ()
    """Limits of the key, besides those of its tenant."""
    rotated_from: str = ""
    """Identifier of the key from which this one descends by rotations; empty for a key that was created."""

    @property
    def budget_key(self) -> str:
        """Identifier under which the use of `budgets` counts: a key and its successors use them together."""
        return self.rotated_from or self.id

    def is_valid(self, now: float) -> bool:
        """Whether the key is accepted at `now` (Unix time, s)."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class TenantRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant that the API created."""

    name: str
    tier: str
    created_at: float
    """Unix time (s)."""
    keys: tuple[TenantKey, ...] = ()
    is_suspended: bool = False
    """Whether all requests of the tenant are refused."""
    budgets: tuple[RecordBudget, ...] = ()
    """Limits of the tenant, besides those of its tier."""
    note: str = ""
    changed_at: float = 0.0
    """Unix time (s) of the last change; each change of a tenant has a later time, although a clock was set back."""
    deleted_at: float | None = None
    """Time of the deletion. The record stays for `shard_merge.DELETED_KEPT_S`, with its keys revoked, so that an older
    state of the store restores neither; None: not deleted."""

    def find_key(self, id: str) -> TenantKey | None:
        """Return the key with an identifier; None if the tenant has no such key."""
        return next((key for key in self.keys if key.id == id), None)

    def under(self, tier: Tier) -> Tenant:
        """Return the tenant as requests see it, by the rules of its tier."""
        return Tenant(self.name, tier.data_class, tier=tier.name, own_budgets=self.budgets).under(tier)


class TenantShard(msgspec.Struct, frozen=True):
    """The tenants of one shard, by name."""

    tenants: tuple[TenantRecord, ...] = ()

    def find(self, name: str) -> TenantRecord | None:
        """Return the record of a tenant, deleted or not; None if the shard has none."""
        return next((record for record in self.tenants if record.name == name), None)

    def replaced(self, record: TenantRecord) -> TenantShard:
        """Return the shard with a record in place of that of the same name."""
        others = [each for each in self.tenants if each.name != record.name]
        return TenantShard(tuple(sorted([*others, record], key=lambda each: each.name)))


def shard_of(tenant: str) -> int:
    """Return the number of the shard that has a tenant, from 0 to SHARDS - 1."""
    return int.from_bytes(sha256(tenant.encode()).digest()[:4], "big") % SHARDS


def new_key(random: bytes) -> tuple[str, str]:
    """Return the identifier of a new key, and the key.

    Args:
        random: ID_BYTES + SECRET_BYTES bytes from a source that cannot be predicted.
    """
    id = f"{KEY_MARK}-{random[:ID_BYTES].hex()}"
    return id, f"{id}-{urlsafe_b64encode(random[ID_BYTES:]).rstrip(b'=').decode()}"


def key_digest(key: str) -> bytes:
    """Return the digest by which a key is stored and looked up."""
    return sha256(key.encode()).digest()
