"""The revoked API keys of tenants in the store, all under one key; every control plane can change them.

A change reads the key and is written with its audit entry, if the key has not changed meanwhile. Entries that this
control plane has read before are kept, so that a value that was removed or put back in the store is repaired by the
leader and by the next change.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import structlog

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import Changed, ConfigStore, KeyValue, Put, SameKey, StoreError, Unchanged
from adapters.store.informer import Informer
from control_plane.audit.audit_log import AuditedAction, AuditLog, ChangeRefused
from penstock.policy.revoked_keys import DIGEST_CHARS, MAX_REASON_CHARS, RevokedKey, RevokedKeySet

MAX_TRIES = 20
"""Tries of a change under concurrent changes; each failed try means that a concurrent change succeeded."""

MIN_STEP_S = 0.001
"""Minimum time (s) between two entries of one key, so that the later one wins though a clock was set back."""

_log = structlog.get_logger(__name__)


class _Read(NamedTuple):
    """The entries as read from the store."""

    entries: RevokedKeySet
    """With those that the store has lost."""
    stored: RevokedKeySet
    revision: int
    """Revision of the key; 0 if it does not exist."""


class KeyRevocationStore:
    """Revokes API keys, lifts revocations and reads them.

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
        self._known = RevokedKeySet()
        """Every entry that was read or written here."""
        self.informer = Informer(store, keys.REVOKED_KEYS, self._note, rng=rng)

    @property
    def known(self) -> RevokedKeySet:
        """The entries as last read from the store."""
        return self._known

    async def read(self) -> RevokedKeySet:
        """Read the entries from the store.

        Raises:
            StoreError: the entries cannot be read.
        """
        return (await self._read()).entries

    async def revoke(self, caller: Caller, digest: str, reason: str) -> tuple[RevokedKey, bool]:
        """Revoke the key with a digest (SHA-256, hexadecimal).

        A key that the list has as revoked gets a newer entry, because agents may know of a later lift: the list may be
        from a backup, or have been put back.

        Returns the entry, and whether the list had none.

        Raises:
            TooManyRevokedKeys: no further key can be revoked.
            StoreError: the store is unavailable; whether the key was revoked is unknown.
        """
        return await self._change(caller, digest, reason, lifted=False)

    async def lift(self, caller: Caller, id: str, reason: str) -> RevokedKey:
        """Lift the revocation of the key with an id or digest; a lifted one is returned unchanged.

        By its digest a key is lifted that the list does not have either: agents know it from a list that was lost.

        Raises:
            KeyError: no key with this id is revoked.
            StoreError: the store is unavailable; whether the revocation was lifted is unknown.
        """
        entries = (await self._read()).entries
        found = entries.find(id)
        if found is None and len(id) < DIGEST_CHARS:
            lifted = next((entry for entry in entries.keys if entry.id == id), None)
            if lifted is None:
                raise KeyError(id)
            return lifted
        return (await self._change(caller, id if found is None else found.digest, reason, lifted=True))[0]

    async def repair(self, epoch: int) -> None:
        """Write the entries that the store lacks, as the leader of `epoch`; no effect if it lacks none.

        Raises:
            StoreError: the store is unavailable.
        """
        item = self.informer.items.get(keys.REVOKED_KEYS)
        if not self.informer.synced or self._is_complete(item):
            return
        entries, stored, revision = await self._read()
        if entries != stored:
            reason = "the store lacked entries that were there before"
            repair = AuditedAction(self._repairer, "key.repair", "revoked keys", reason, after=_counted(entries))
            await self._write(repair, entries, revision, SameKey(keys.LEADER, epoch))

    def _is_complete(self, item: KeyValue | None) -> bool:
        """Whether a stored value has every known entry; true for a value that this release cannot decode."""
        if item is None or not item.value:
            return not self._known.keys
        try:
            return decode(item.value, RevokedKeySet) == self._known
        except CodecError:
            return True

    async def _change(self, caller: Caller, digest: str, reason: str, *, lifted: bool) -> tuple[RevokedKey, bool]:
        for _ in range(MAX_TRIES):
            entries, _, revision = await self._read()
            before = next((entry for entry in entries.keys if entry.digest == digest), None)
            is_new = before is None or before.lifted != lifted
            at = max(self._clock(), before.at + MIN_STEP_S if before is not None else 0.0)
            entry = RevokedKey(digest, at, caller.name, reason[:MAX_REASON_CHARS], lifted)
            action = "key.lift" if lifted else "key.revoke"
            after = entries.changed(entry)
            made = AuditedAction(caller, action, entry.id, reason, after=_counted(after))
            if await self._write(made, after, revision):
                return entry, is_new
        raise StoreError(f"revoked keys changed concurrently in each of {MAX_TRIES} tries to change one")

    async def _read(self) -> _Read:
        item = await self._store.get(keys.REVOKED_KEYS)
        if item is None or not item.value:
            # The value is missing or not authentic: the next change replaces it, based on what was read before.
            return _Read(self._known, RevokedKeySet(), 0 if item is None else item.mod_revision)
        try:
            stored = decode(item.value, RevokedKeySet)
        except CodecError as error:
            raise StoreError(f"revoked keys cannot be read, so none can be changed: {error}") from error
        self._known = self._known.merged(stored.keys)
        return _Read(self._known, stored, item.mod_revision)

    async def _write(self, made: AuditedAction, entries: RevokedKeySet, revision: int, *fence: SameKey) -> bool:
        """Write the entries and the audit entry if the key still has `revision`; return whether they were written."""
        try:
            await self._audit.record(
                made,
                expect=[Unchanged(keys.REVOKED_KEYS, revision), *fence],
                do=[Put(keys.REVOKED_KEYS, encode(entries))],
            )
        except ChangeRefused:
            return False
        if not made.caller.is_dry_run:
            self._known = self._known.merged(entries.keys)
        return True

    def _note(self, change: Changed) -> None:
        if change.now is not None and change.now.value:
            try:
                self._known = self._known.merged(decode(change.now.value, RevokedKeySet).keys)
            except CodecError as error:
                _log.error("revoked keys not read", reason=str(error))


def _counted(entries: RevokedKeySet) -> dict[str, int]:
    return {"revoked_keys": len(entries.revoked)}
