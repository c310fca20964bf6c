"""The tenants that the API creates, in shards of the store; every control plane can change them.

Shards are read, written and repaired by `control_plane/audit/kept_values.py`, and combined by
`penstock/tenancy/created_tenants/shard_merge.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import Any, NamedTuple

import msgspec

from adapters.access.callers import Caller
from adapters.store import keys
from adapters.store.codec import CodecError
from adapters.store.config_store import ConfigStore, StoreError
from control_plane.audit.audit_log import AuditedAction, AuditLog
from control_plane.audit.kept_values import MAX_TRIES, MIN_STEP_S, KeptValues, Read, UnreadableValue, ValueKind
from penstock.policy.policy import Policy, created_tenants_of
from penstock.tenancy.created_tenants.shard_merge import merged, without_old_deletions
from penstock.tenancy.created_tenants.tenant_changes import MAX_TENANTS, Edit, TenantConflict
from penstock.tenancy.tenant_record import TenantKey, TenantRecord, TenantShard, shard_of

MAX_AUDITED_KEYS = 4
"""Maximum number of keys of which an audit entry has all fields: a rotation changes two."""


class TenantAction(NamedTuple):
    """A change of a tenant, as its audit entry describes it."""

    caller: Caller
    action: str
    """`tenant.verb` or `key.verb`."""
    tenant: str
    reason: str
    key: str = ""
    """Identifier of the key that is changed; empty for a change of the tenant."""


class TenantStore:
    """Creates, changes and reads tenants.

    Args:
        store: the fleet's configuration store.
        audit: records each change, in the same transaction.
        name: name of this control plane, which audit entries of repairs record as the caller.
        rng: source of the backoff's jitter.
        clock: Unix time, in seconds.
    """

    def __init__(
        self, store: ConfigStore, audit: AuditLog, name: str, *, rng: Random, clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._count = 0
        kind = ValueKind(
            TenantShard, self._merged, "shard ", "tenant.repair", lambda shard: {"tenants": len(shard.tenants)}
        )
        self._shards = KeptValues(store, audit, keys.TENANTS, kind, name=name, rng=rng)
        self.informer = self._shards.informer
        self.repair = self._shards.repair

    @property
    def count(self) -> int:
        """Number of tenants, as last read from the store."""
        return self._count

    def tenants(self) -> Iterator[TenantRecord]:
        """Yield all tenants, as last read from the store, in no particular order."""
        for shard in list(self._shards.known.values()):
            yield from _present(shard)

    def find(self, name: str) -> TenantRecord | None:
        """Return a tenant, as last read from the store; None if there is none of the name."""
        record = self._shards.find(_shard_key(name)).find(name)
        return None if record is None or record.deleted_at is not None else record

    def sender(self, policy: Policy, name: str) -> str:
        """Return the name in `Policy.senders` of the requests of a tenant; `name` itself for an unknown tenant."""
        record = None if name in policy.tenants else self.find(name)
        return name if record is None else created_tenants_of(record.tier)

    def owner_of(self, digest: bytes) -> tuple[TenantRecord, TenantKey] | None:
        """Return the tenant that has the key with a digest (SHA-256), and the key; None if no tenant has it."""
        return next(((each, key) for each in self.tenants() for key in each.keys if key.digest == digest), None)

    async def read(self, name: str) -> TenantRecord | None:
        """Read a tenant from the store; None if there is none of the name.

        Raises:
            StoreError: the shard of the tenant cannot be read.
        """
        record = (await self._read(_shard_key(name))).value.find(name)
        return None if record is None or record.deleted_at is not None else record

    async def change(self, made: TenantAction, edit: Edit) -> TenantRecord:
        """Make a change of one tenant, and return its record.

        Args:
            made: the change for the audit log.
            edit: returns the record after the change; called again if the shard has changed meanwhile. Nothing is
                written where it returns the record that it received.

        Raises:
            TenantConflict: there are too many tenants, or the shard is full; or `edit` raises it, or another error.
            StoreError: the store is unavailable; whether the change was made is unknown.
        """
        key = _shard_key(made.tenant)
        for _ in range(MAX_TRIES):
            read = await self._read(key)
            before, now = read.value.find(made.tenant), self._clock()
            after = edit(before, now)
            if after is before:
                return after
            if (before is None or before.deleted_at is not None) and self._count >= MAX_TENANTS:
                raise TenantConflict(f"there are {MAX_TENANTS} tenants, the maximum; delete tenants that are not used")
            earliest = 0.0 if before is None else before.changed_at + MIN_STEP_S
            after = msgspec.structs.replace(after, changed_at=max(now, earliest))
            entry = AuditedAction(
                made.caller, made.action, made.key or made.tenant, made.reason, *_sides(before, after)
            )
            shard = without_old_deletions(read.value.replaced(after))
            try:
                if await self._shards.write(entry, key, shard, read.revision):
                    return after
            except CodecError as error:
                raise TenantConflict(f"{key} is full: {error}; remove keys or budgets") from None
        raise StoreError(f"the shard of {made.tenant} changed concurrently in each of {MAX_TRIES} tries to change it")

    async def _read(self, key: str) -> Read[TenantShard]:
        read = await self._shards.read(key)
        if read.item is not None and not read.item.value and key not in self._shards.known:
            raise UnreadableValue(
                f"{key} is not signed by a process of this fleet, and this control plane does not know its tenants;"
                " another control plane, or a backup, may restore it"
            )
        return read

    def _merged(self, known: TenantShard, read: TenantShard) -> TenantShard:
        now = merged(known, read)
        self._count += sum(1 for _ in _present(now)) - sum(1 for _ in _present(known))
        return now


def _shard_key(tenant: str) -> str:
    return keys.tenant_shard(shard_of(tenant))


def _present(shard: TenantShard) -> Iterator[TenantRecord]:
    return (record for record in shard.tenants if record.deleted_at is None)


def _sides(before: TenantRecord | None, after: TenantRecord) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return a change as the audit log shows it: without digests, and only the keys that change."""
    old, new = (set[TenantKey](() if record is None else record.keys) for record in (before, after))
    return _summary(before, old - new), _summary(after, new - old)


def _summary(record: TenantRecord | None, changed: Collection[TenantKey]) -> dict[str, Any] | None:
    if record is None or record.deleted_at is not None:
        return None
    fields = ("id", "expires_at", "revoked_at", "note", "budgets")
    shown = sorted(changed, key=lambda key: key.id)[:MAX_AUDITED_KEYS]
    return {
        "tenant": record.name,
        "tier": record.tier,
        "suspended": record.is_suspended,
        "budgets": msgspec.to_builtins(record.budgets),
        "note": record.note,
        "keys": [key.id for key in record.keys],
        "changed_keys": [{field: msgspec.to_builtins(getattr(key, field)) for field in fields} for key in shown],
    }
