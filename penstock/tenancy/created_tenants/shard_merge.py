"""Combines two states of a shard of tenants, so that an older state makes nothing valid that was withdrawn.

Of two records of a tenant the one that was changed later counts. A key that either record has as revoked or expired
stays so: revocations are never lifted, and expiry times only move forward. A record that one state lacks is kept: a
deletion is a record too, for DELETED_KEPT_S. Control planes and agents combine what they read with what they know.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.tenancy.tenant_record import TenantKey, TenantRecord, TenantShard

DELETED_KEPT_S: Final = 30 * 86_400.0
"""Time (s) for which the record of a deleted tenant is kept; an older state of the store may restore the tenant."""

MAX_DELETED: Final = 32
"""Maximum number of records of deleted tenants in a shard; the oldest are removed first."""


def merged(known: TenantShard, read: TenantShard) -> TenantShard:
    """Return the combination of two states of one shard; `known` itself if it has all of `read`."""
    if known == read:
        return known
    records = {record.name: record for record in known.tenants}
    for record in read.tenants:
        before = records.get(record.name)
        records[record.name] = record if before is None else _merged_record(before, record)
    combined = without_old_deletions(TenantShard(tuple(records[name] for name in sorted(records))))
    return known if combined == known else combined


def without_old_deletions(shard: TenantShard) -> TenantShard:
    """Return a shard without the records of tenants that were deleted long before its last change."""
    deleted = sorted(record.deleted_at for record in shard.tenants if record.deleted_at is not None)
    if not deleted:
        return shard
    changed_at = max(record.changed_at for record in shard.tenants)
    kept_after = max(changed_at - DELETED_KEPT_S, deleted[-MAX_DELETED - 1] if len(deleted) > MAX_DELETED else 0.0)
    kept = [record for record in shard.tenants if record.deleted_at is None or record.deleted_at > kept_after]
    return shard if len(kept) == len(shard.tenants) else TenantShard(tuple(kept))


def _merged_record(known: TenantRecord, read: TenantRecord) -> TenantRecord:
    # Of records with equal times, which only a defect writes, the deletion counts, so that the order has no effect.
    newer, older = (known, read) if _order(known) > _order(read) else (read, known)
    ends = {key.digest: key for key in older.keys}
    keys = tuple(_stricter(key, ends[key.digest]) if key.digest in ends else key for key in newer.keys)
    return newer if keys == newer.keys else replace(newer, keys=keys)


def _order(record: TenantRecord) -> tuple[float, bool]:
    return record.changed_at, record.deleted_at is not None


def _stricter(key: TenantKey, other: TenantKey) -> TenantKey:
    revoked_at, expires_at = _earlier(key.revoked_at, other.revoked_at), _earlier(key.expires_at, other.expires_at)
    if (revoked_at, expires_at) == (key.revoked_at, key.expires_at):
        return key
    return replace(key, revoked_at=revoked_at, expires_at=expires_at)


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
