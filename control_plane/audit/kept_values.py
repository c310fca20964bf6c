"""Values in the store that every control plane can change, each change in one transaction with its audit entry.

A change reads the value and is written if the value has not changed meanwhile. What this control plane has read or
written before is kept and combined with what it reads, so that a value that was removed or put back in the store is
repaired by the leader and by the next change.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Generic, NamedTuple, TypeVar

import msgspec
import structlog

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import Changed, ConfigStore, KeyValue, Put, SameKey, StoreError, Unchanged
from adapters.store.informer import Informer
from control_plane.audit.audit_log import AuditedAction, AuditLog, ChangeRefused

MAX_TRIES = 20
"""Tries of a change under concurrent changes; each failed try means that a concurrent change succeeded."""

MIN_STEP_S = 0.001
"""Minimum time (s) between two changes of one entry, so that the later one counts though a clock was set back."""

T = TypeVar("T", bound=msgspec.Struct)

_log = structlog.get_logger(__name__)


async def write_if_unchanged(audit: AuditLog, made: AuditedAction, put: Put, revision: int, *fence: SameKey) -> bool:
    """Write a value and its audit entry if the key still has `revision`, and `fence` holds; return whether it did.

    Raises:
        StoreError: the store is unavailable; whether the value was written is unknown.
    """
    try:
        await audit.record(made, expect=[Unchanged(put.key, revision), *fence], do=[put])
    except ChangeRefused:
        return False
    return True


class UnreadableValue(StoreError):
    """A value that this control plane cannot decode, and therefore does not change."""


class ValueKind(NamedTuple, Generic[T]):
    """What the values under a prefix are."""

    type: type[T]
    """Its instance without arguments is the value of a key that does not exist."""
    merged: Callable[[T, T], T]
    """Combines a known value with one that is read."""
    subject: str
    """Subject of the audit entries of repairs, without the end of the key that follows the prefix."""
    action: str
    """Action of the audit entries of repairs."""
    counted: Callable[[T], dict[str, int]]
    """Describes a value in these entries."""


class Read(NamedTuple, Generic[T]):
    """A value as read from the store."""

    value: T
    """With what the store has lost."""
    stored: T
    """Empty if the stored value is missing or not authentic; the next change then replaces it."""
    item: KeyValue | None
    """None if the key does not exist."""

    @property
    def revision(self) -> int:
        """Revision of the key; 0 if it does not exist."""
        return 0 if self.item is None else self.item.mod_revision


class KeptValues(Generic[T]):
    """Reads, writes and repairs the values under a prefix.

    Args:
        store: the fleet's configuration store.
        audit: records each change, in the same transaction.
        prefix: prefix of the keys.
        kind: what the values are.
        name: name of this control plane, which audit entries of repairs record as the caller.
        rng: source of the backoff's jitter.
    """

    def __init__(
        self, store: ConfigStore, audit: AuditLog, prefix: str, kind: ValueKind[T], *, name: str, rng: Random
    ) -> None:
        self._store = store
        self._audit = audit
        self._prefix = prefix
        self._kind = kind
        self._repairer = Caller(name, Role.OPERATOR)
        self.known: dict[str, T] = {}
        """Everything that was read or written here, by key."""
        self._incomplete: set[str] = set()
        """Keys of the values of which the store lacks a part, or may lack the last change."""
        self.informer = Informer(store, prefix, self._note, rng=rng)

    def find(self, key: str) -> T:
        """Return the value of a key, as last read or written here."""
        return self.known.get(key) or self._kind.type()

    async def read(self, key: str) -> Read[T]:
        """Read a value.

        Raises:
            UnreadableValue: the value cannot be decoded.
            StoreError: the store is unavailable.
        """
        item = await self._store.get(key)
        if item is None or not item.value:
            return Read(self.find(key), self._kind.type(), item)
        stored = self._decoded(item)
        self._learn(key, stored)
        return Read(self.known[key], stored, item)

    async def write(self, made: AuditedAction, key: str, value: T, revision: int, *fence: SameKey) -> bool:
        """Write a value and the audit entry if the key still has `revision`; return whether they were written.

        Raises:
            CodecError: the value is too large.
            StoreError: the store is unavailable; whether the value was written is unknown.
        """
        if not await write_if_unchanged(self._audit, made, Put(key, encode(value)), revision, *fence):
            return False
        if not made.caller.is_dry_run:
            self._learn(key, value)
            self._incomplete.add(key)
        return True

    async def repair(self, epoch: int) -> None:
        """Write what the store lacks, as the leader of `epoch`; no effect if it lacks nothing.

        Raises:
            StoreError: the store is unavailable.
        """
        for key in sorted(self._incomplete if self.informer.synced else ()):
            try:
                read = await self.read(key)
            except UnreadableValue as error:
                _log.error("stored value not repaired", key=key, reason=str(error))
                continue
            if read.value != read.stored:
                subject = self._kind.subject + key.removeprefix(self._prefix)
                reason = "the store lacked entries or changes that were there before"
                counts = [self._kind.counted(each) for each in (read.stored, read.value)]
                repair = AuditedAction(self._repairer, self._kind.action, subject, reason, *counts)
                await self.write(repair, key, read.value, read.revision, SameKey(keys.LEADER, epoch))

    def _note(self, change: Changed) -> None:
        key = change.key
        if change.now is None or not change.now.value:
            if key in self.known:
                self._incomplete.add(key)
            return
        try:
            stored = self._decoded(change.now)
        except UnreadableValue as error:
            _log.error("stored value not read", key=key, reason=str(error))
            return
        self._learn(key, stored)
        if self.known[key] == stored:
            self._incomplete.discard(key)
        else:
            self._incomplete.add(key)

    def _learn(self, key: str, stored: T) -> None:
        self.known[key] = self._kind.merged(self.find(key), stored)

    def _decoded(self, item: KeyValue) -> T:
        try:
            return decode(item.value, self._kind.type)
        except CodecError as error:
            # A write over an undecodable value would remove all of its entries.
            raise UnreadableValue(f"{item.key} cannot be read, so it cannot be changed: {error}") from error
