"""The purges of the result cache in the store, all under one key; every control plane can add one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from adapters.access.callers import Caller
from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Put, StoreError
from control_plane.audit.audit_log import AuditedAction, AuditLog
from control_plane.audit.kept_values import MAX_TRIES, write_if_unchanged
from penstock.result_cache.cache_purges import CachePurge, CachePurges

MAX_REASON_CHARS = 100
"""Maximum length of the reason in an entry, in characters; the audit log has the whole reason."""

ID_BYTES = 8


class PurgeStore:
    """Reads purges and adds further ones.

    Args:
        store: the fleet's configuration store.
        audit: records each change, in the same transaction.
        rng: source of the identifiers.
        clock: Unix time, in seconds.
    """

    def __init__(self, store: ConfigStore, audit: AuditLog, *, rng: Random, clock: Callable[[], float]) -> None:
        self._store = store
        self._audit = audit
        self._rng = rng
        self._clock = clock

    async def read(self) -> CachePurges:
        """Read the purges; raises StoreError if they cannot be read."""
        return (await self._read())[0]

    async def purge(self, caller: Caller, model: str, reason: str) -> CachePurge:
        """Make the kept responses of a model unreachable.

        Args:
            model: name of a model, model version or adapter, or `cache_purges.EVERY_MODEL`.

        Raises:
            StoreError: the store is unavailable; whether the responses were purged is unknown.
        """
        for _ in range(MAX_TRIES):
            purges, revision = await self._read()
            id = self._rng.randbytes(ID_BYTES).hex()
            purge = CachePurge(model, id, self._clock(), caller.name, reason[:MAX_REASON_CHARS])
            made = AuditedAction(caller, "result-cache.purge", model, reason)
            put = Put(keys.CACHE_PURGES, encode(purges.with_purge(purge)))
            if await write_if_unchanged(self._audit, made, put, revision):
                return purge
        raise StoreError(f"the purges changed concurrently in each of {MAX_TRIES} tries to add one")

    async def _read(self) -> tuple[CachePurges, int]:
        """Return the purges, and the revision of the key; 0 if it does not exist."""
        item = await self._store.get(keys.CACHE_PURGES)
        if item is None or not item.value:
            return CachePurges(), 0 if item is None else item.mod_revision
        try:
            return decode(item.value, CachePurges), item.mod_revision
        except CodecError as error:
            raise StoreError(f"the purges cannot be read, so none can be added: {error}") from error
