"""Changes of tenants and of their keys: each returns the new record, or the record itself if nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from penstock.tenancy.tenant_record import MAX_KEYS, TenantKey, TenantRecord

MAX_TENANTS: Final = 100_000
"""Maximum number of tenants that the API creates."""

OVERLAP_S: Final = 86_400.0
"""Time (s) for which a key is valid after it was rotated, unless the caller gives another one."""

ENDED_KEPT_S: Final = 30 * 86_400.0
"""Time (s) for which a revoked or expired key keeps its place among the MAX_KEYS keys of a tenant."""

Edit = Callable[[TenantRecord | None, float], TenantRecord]
"""Returns the record of a tenant after a change, from the record before (None: there is no such tenant) and Unix time
(s)."""


class TenantNotFound(Exception):
    """There is no such tenant, or the tenant has no such key; the message has the remedy."""


class TenantConflict(Exception):
    """The change contradicts the state of the tenant; the message has the remedy."""


def existing(record: TenantRecord | None, name: str) -> TenantRecord:
    """Return the record of a tenant.

    Raises:
        TenantNotFound: there is none, or the tenant is deleted.
    """
    if record is None or record.deleted_at is not None:
        raise TenantNotFound(f"the API has created no tenant {name}; `penstock tenant list` shows all tenants")
    return record


def created(before: TenantRecord | None, wanted: TenantRecord, *, restores: bool = False) -> TenantRecord:
    """Create a tenant; a repeated request returns the tenant unchanged.

    Args:
        restores: whether the tenant may have the name of a deleted one, and so its files, jobs and responses.

    Raises:
        TenantConflict: another tenant has the name, or had it.
    """
    if before is not None and before.deleted_at is not None and not restores:
        raise TenantConflict(
            f"a tenant {wanted.name} was deleted, and its files, jobs and responses are those of the name; choose"
            " another name, or create the tenant with `restore` (--restore) if it is the same"
        )
    if before is None or before.deleted_at is not None:
        return wanted
    if (before.tier, before.budgets, before.note) == (wanted.tier, wanted.budgets, wanted.note):
        return before
    raise TenantConflict(
        f"there is a tenant {wanted.name} with another tier, budgets or note; change it, or choose another name"
    )


def with_key(record: TenantRecord, key: TenantKey, now: float) -> TenantRecord:
    """Add a key. Keys that ended long ago make room for it.

    Raises:
        TenantConflict: the tenant has MAX_KEYS keys, or has the key.
    """
    if any(key.id == each.id or key.digest == each.digest for each in record.keys):
        raise TenantConflict(f"{record.name} has a key {key.id}; repeat the request")
    ended = [each for each in record.keys if _ended_at(each) <= now - ENDED_KEPT_S]
    dropped = set(ended[: max(0, len(record.keys) + 1 - MAX_KEYS)])
    kept = tuple(each for each in record.keys if each not in dropped)
    if len(kept) >= MAX_KEYS:
        days = round(ENDED_KEPT_S / 86_400)
        raise TenantConflict(
            f"{record.name} has {MAX_KEYS} keys, the maximum; revoked and expired ones are removed after {days} days:"
            " create a second tenant of the tier, or use fewer keys"
        )
    return replace(record, keys=(*kept, key))


def with_rotated_key(record: TenantRecord, id: str, key: TenantKey, overlap_s: float, now: float) -> TenantRecord:
    """Add the successor of a key, with the same note and budgets in use; the key itself expires after `overlap_s` (s).

    Raises:
        TenantNotFound: the tenant has no such key.
        TenantConflict: the key is not valid, or there is no room for another.
    """
    old = _key(record, id)
    if not old.is_valid(now):
        raise TenantConflict(f"the key {id} is revoked or expired; create a new key")
    expires_at = now + overlap_s if old.expires_at is None else min(old.expires_at, now + overlap_s)
    rotated = _replaced_key(record, replace(old, expires_at=expires_at))
    return with_key(rotated, replace(key, note=old.note, budgets=old.budgets, rotated_from=old.budget_key), now)


def with_revoked_key(record: TenantRecord, id: str, now: float) -> TenantRecord:
    """Revoke a key; a revoked one is left unchanged.

    Raises:
        TenantNotFound: the tenant has no such key.
    """
    key = _key(record, id)
    return record if key.revoked_at is not None else _replaced_key(record, replace(key, revoked_at=now))


def deleted(record: TenantRecord, now: float) -> TenantRecord:
    """Delete a tenant: its record stays for a time, without a note and with all keys revoked."""
    keys = tuple(key if key.revoked_at is not None else replace(key, revoked_at=now) for key in record.keys)
    return TenantRecord(record.name, record.tier, record.created_at, keys, deleted_at=now)


def _key(record: TenantRecord, id: str) -> TenantKey:
    key = record.find_key(id)
    if key is None:
        raise TenantNotFound(f"{record.name} has no key {id}; `penstock tenant key list {record.name}` shows its keys")
    return key


def _replaced_key(record: TenantRecord, key: TenantKey) -> TenantRecord:
    return replace(record, keys=tuple(key if each.id == key.id else each for each in record.keys))


def _ended_at(key: TenantKey) -> float:
    ends = [at for at in (key.revoked_at, key.expires_at) if at is not None]
    return min(ends, default=float("inf"))
