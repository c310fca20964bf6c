"""The revoked API keys of tenants in the store, all under one key; every control plane can change them.

They are read, written and repaired by `control_plane/audit/kept_values.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from adapters.access.callers import Caller
from adapters.store import keys
from adapters.store.config_store import ConfigStore, StoreError
from control_plane.audit.audit_log import AuditedAction, AuditLog
from control_plane.audit.kept_values import MAX_TRIES, MIN_STEP_S, KeptValues, Read, ValueKind
from penstock.policy.revoked_keys import DIGEST_CHARS, MAX_REASON_CHARS, RevokedKey, RevokedKeySet


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
        self._clock = clock
        kind = ValueKind(
            RevokedKeySet, lambda known, read: known.merged(read.keys), "revoked keys", "key.repair", _counted
        )
        self._values = KeptValues(store, audit, keys.REVOKED_KEYS, kind, name=name, rng=rng)
        self.informer = self._values.informer
        self.repair = self._values.repair

    @property
    def known(self) -> RevokedKeySet:
        """The entries as last read from the store."""
        return self._values.find(keys.REVOKED_KEYS)

    async def read(self) -> RevokedKeySet:
        """Read the entries from the store.

        Raises:
            StoreError: the entries cannot be read.
        """
        return (await self._read()).value

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
        entries = (await self._read()).value
        found = entries.find(id)
        if found is None and len(id) < DIGEST_CHARS:
            lifted = next((entry for entry in entries.keys if entry.id == id), None)
            if lifted is None:
                raise KeyError(id)
            return lifted
        return (await self._change(caller, id if found is None else found.digest, reason, lifted=True))[0]

    async def _change(self, caller: Caller, digest: str, reason: str, *, lifted: bool) -> tuple[RevokedKey, bool]:
        for _ in range(MAX_TRIES):
            read = await self._read()
            before = next((entry for entry in read.value.keys if entry.digest == digest), None)
            is_new = before is None or before.lifted != lifted
            at = max(self._clock(), before.at + MIN_STEP_S if before is not None else 0.0)
            entry = RevokedKey(digest, at, caller.name, reason[:MAX_REASON_CHARS], lifted)
            action = "key.lift" if lifted else "key.revoke"
            after = read.value.changed(entry)
            made = AuditedAction(caller, action, entry.id, reason, after=_counted(after))
            if await self._values.write(made, keys.REVOKED_KEYS, after, read.revision):
                return entry, is_new
        raise StoreError(f"revoked keys changed concurrently in each of {MAX_TRIES} tries to change one")

    async def _read(self) -> Read[RevokedKeySet]:
        return await self._values.read(keys.REVOKED_KEYS)


def _counted(entries: RevokedKeySet) -> dict[str, int]:
    return {"revoked_keys": len(entries.revoked)}
