"""The tenants that the API creates, in shards of the store; every control plane can change them.

A change reads the shard of its tenant and is written with its audit entry, if the shard has not changed meanwhile.
What this control plane has read before is kept and combined with what it reads
(`penstock/tenancy/records/shard_merge.py`), so that a shard that was removed or put back in the store is repaired by
the leader and by the next change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import Any, NamedTuple

import msgspec
import structlog

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import Changed, ConfigStore, KeyValue, Put, SameKey, StoreError, Unchanged
from adapters.store.informer import Informer
from control_plane.audit.audit_log import AuditedAction, AuditLog, ChangeRefused
from penstock.policy.policy import Policy, created_tenants_of
from penstock.tenancy.records.shard_merge import merged, without_old_deletions
from penstock.tenancy.records.tenant_changes import MAX_TENANTS, Edit, TenantConflict
from penstock.tenancy.tenant_record import TenantKey, TenantRecord, TenantShard, shard_of

MAX_TRIES = 20
"""Tries of a change under concurrent changes; each failed try means that a concurrent change succeeded."""

MIN_STEP_S = 0.001
"""Minimum time (s) between two changes of one tenant, so that the later one counts though a clock was set back."""

MAX_AUDITED_KEYS = 4
"""Maximum number of keys of which an audit entry has all fields: a rotation changes two."""

_EMPTY = TenantShard()

_log = structlog.get_logger(__name__)


class TenantAction(NamedTuple):
    """A change of a tenant, as its audit entry describes it."""

    caller: Caller
    action: str
    """`tenant.verb` or `key.verb`."""
    tenant: str
    reason: str
    key: str = ""
    """Identifier of the key that is changed; empty for a change of the tenant."""


class _Read(NamedTuple):
    """A shard as read from the store."""

    shard: TenantShard
    """With what the store has lost."""
    stored: TenantShard
    revision: int
    """Revision of the key; 0 if it does not exist."""


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
        self._store = store
        self._audit = audit
        self._repairer = Caller(name, Role.OPERATOR)
        self._clock = clock
        self._shards: dict[int, TenantShard] = {}
        """Every shard with all that was read or written here, by number."""
        self._count = 0
        self._incomplete: set[int] = set()
        """Numbers of the shards of which the store lacks a part."""
        self.informer = Informer(store, keys.TENANTS, self._note, rng=rng)

    @property
    def count(self) -> int:
        """Number of tenants, as last read from the store."""
        return self._count

    def tenants(self) -> Iterator[TenantRecord]:
        """Yield all tenants, as last read from the store, in no particular order."""
        for shard in list(self._shards.values()):
            yield from _present(shard)

    def find(self, name: str) -> TenantRecord | None:
        """Return a tenant, as last read from the store; None if there is none of the name."""
        record = self._shards.get(shard_of(name), _EMPTY).find(name)
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
        record = (await self._read(shard_of(name))).shard.find(name)
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
        number = shard_of(made.tenant)
        for _ in range(MAX_TRIES):
            shard, _, revision = await self._read(number)
            before, now = shard.find(made.tenant), self._clock()
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
            if await self._write(entry, number, shard.replaced(after), revision):
                return after
        raise StoreError(f"the shard of {made.tenant} changed concurrently in each of {MAX_TRIES} tries to change it")

    async def repair(self, epoch: int) -> None:
        """Write the parts of shards that the store lacks, as the leader of `epoch`; no effect if it lacks none.

        Raises:
            StoreError: the store is unavailable.
        """
        for number in sorted(self._incomplete if self.informer.synced else ()):
            try:
                shard, stored, revision = await self._read(number)
            except _UnreadableShard as error:
                _log.error("shard of tenants not repaired", shard=number, reason=str(error))
                continue
            if shard == stored:
                self._incomplete.discard(number)
                continue
            counts = [{"tenants": len(each.tenants)} for each in (stored, shard)]
            reason = "the store lacked tenants or changes that were there before"
            repair = AuditedAction(self._repairer, "tenant.repair", f"shard {number}", reason, *counts)
            await self._write(repair, number, shard, revision, SameKey(keys.LEADER, epoch))

    async def _read(self, number: int) -> _Read:
        item = await self._store.get(keys.tenant_shard(number))
        known = self._shards.get(number, _EMPTY)
        if item is None:
            return _Read(known, _EMPTY, 0)
        if not item.value:
            # The value is not authentic: the next change replaces it, based on what was read before.
            if number not in self._shards:
                raise _UnreadableShard(
                    f"{item.key} is not signed by a process of this fleet, and this control plane does not know its"
                    " tenants; another control plane, or a backup, may restore it"
                )
            return _Read(known, _EMPTY, item.mod_revision)
        stored = _decoded(item)
        self._learn(number, stored)
        return _Read(self._shards[number], stored, item.mod_revision)

    async def _write(
        self, made: AuditedAction, number: int, shard: TenantShard, revision: int, *fence: SameKey
    ) -> bool:
        """Write a shard and the audit entry if the key still has `revision`; return whether they were written."""
        key = keys.tenant_shard(number)
        shard = without_old_deletions(shard)
        try:
            value = encode(shard)
        except CodecError as error:
            raise TenantConflict(f"the shard {number} of tenants is full: {error}; remove keys or budgets") from None
        try:
            await self._audit.record(made, expect=[Unchanged(key, revision), *fence], do=[Put(key, value)])
        except ChangeRefused:
            return False
        if not made.caller.is_dry_run:
            self._learn(number, shard)
        return True

    def _note(self, change: Changed) -> None:
        number = keys.tenant_shard_number(change.key)
        if number is None:
            return
        if change.now is None or not change.now.value:
            if number in self._shards:
                self._incomplete.add(number)
            return
        try:
            stored = _decoded(change.now)
        except _UnreadableShard as error:
            _log.error("shard of tenants not read", shard=number, reason=str(error))
            return
        self._learn(number, stored)
        if self._shards[number] == stored:
            self._incomplete.discard(number)
        else:
            self._incomplete.add(number)

    def _learn(self, number: int, stored: TenantShard) -> None:
        known = self._shards.get(number, _EMPTY)
        self._shards[number] = now = merged(known, stored)
        self._count += sum(1 for _ in _present(now)) - sum(1 for _ in _present(known))


class _UnreadableShard(StoreError):
    """A shard of the store that this control plane cannot read, and therefore does not change."""


def _decoded(item: KeyValue) -> TenantShard:
    try:
        return decode(item.value, TenantShard)
    except CodecError as error:
        # A write over an undecodable shard would remove all its tenants.
        raise _UnreadableShard(f"{item.key} cannot be read, so none of its tenants can be changed: {error}") from error


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
