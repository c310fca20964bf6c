"""Stores responses of changes, so that every control plane recognises a repeated request.

A request is claimed before it is handled and marked as made in the transaction of its change; its response is stored at
the end. A change is made at most once per key, even if a process fails: a marked change is not made again, and a claim
that another control plane takes over fences the earlier claim.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Delete, Put, StoreError, Unchanged
from control_plane.audit.idempotency_claim import Claim, IdempotencyRecord, Phase

RETENTION_S = 3600
"""Time (s) for which a response is stored."""

CLAIM_TIMEOUT_S = 30.0
"""Age (s) at which a repeated request takes over a claim without a change; no change takes that long."""

MAX_STORED = 1_000
"""Maximum number of stored requests; the oldest are removed first."""

MAX_REMOVED = 100
"""Maximum number of requests removed in one transaction."""

MAX_RESPONSE_BYTES = 16 * 1024
"""Maximum size (bytes) of a stored body. For a larger response, only the mark that the change was made is stored."""

_log = structlog.get_logger(__name__)


class IdempotencyStore:
    """Claims requests and stores their responses.

    Args:
        store: the fleet's configuration store.
        name: name of this control plane.
        clock: Unix time (s).
    """

    def __init__(self, store: ConfigStore, name: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._name = name
        self._clock = clock

    async def claim(self, name: str, fingerprint: str) -> Claim | IdempotencyRecord:
        """Return a claim to handle a request, or the stored state of a request that was or is being handled.

        Args:
            name: digest of caller, method, path and key.
            fingerprint: digest of the rest of the request.

        Raises:
            StoreError: the store does not respond, or the stored state cannot be decoded; the request must not be
                handled.
        """
        key = keys.idempotency_record(name)
        item = await self._store.get(key)
        if item is None:
            await self._make_room()
        else:
            stored = _decode(item.value)
            if stored.phase is not Phase.CLAIMED or self._clock() - stored.at < CLAIM_TIMEOUT_S:
                return stored
        own = IdempotencyRecord(fingerprint, self._name, self._clock())
        lease_id = await self._store.grant_lease(RETENTION_S)
        expected = Unchanged(key, item.mod_revision if item is not None else 0)
        result = await self._store.commit([expected], [Put(key, encode(own), lease_id)])
        if result.succeeded:
            return Claim(key, own, lease_id, result.revision)
        await self._revoke(lease_id)
        item = await self._store.get(key)
        # A key that no longer exists belonged to a concurrent request that was refused; the client may try again.
        return _decode(item.value) if item is not None else own

    async def answered(self, claim: Claim, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        """Store the response of a successful request; if the store does not respond, only the change stays marked."""
        record = msgspec.structs.replace(claim.record, phase=Phase.ANSWERED, status=status, headers=headers, body=body)
        try:
            result = await self._store.commit([claim.unchanged], [claim.put(record)])
        except StoreError as error:
            _log.warning("idempotent response not stored", reason=str(error))
            return
        if result.succeeded:
            claim.written(record, result.revision)

    async def release(self, claim: Claim) -> None:
        """Remove a claim under which nothing was changed, so that the request can be repeated.

        If the outcome of a change is unknown, a change that was written has also changed the claim, so this method does
        nothing; otherwise the removal of the claim prevents the change.
        """
        if claim.record.phase is not Phase.CLAIMED:
            return
        with suppress(StoreError):
            if (await self._store.commit([claim.unchanged], [Delete(claim.key)])).succeeded:
                await self._revoke(claim.lease_id)

    async def _make_room(self) -> None:
        items = (await self._store.list(keys.IDEMPOTENCY_RECORDS, values=False)).items
        excess = len(items) - MAX_STORED + 1
        if excess > 0:
            oldest = sorted(items, key=lambda item: item.create_revision)[: min(excess, MAX_REMOVED)]
            await self._store.commit((), [Delete(item.key) for item in oldest])

    async def _revoke(self, lease_id: int) -> None:
        with suppress(StoreError):
            await self._store.revoke_lease(lease_id)


def _decode(value: bytes) -> IdempotencyRecord:
    try:
        return decode(value, IdempotencyRecord)
    except CodecError as error:
        raise StoreError(f"the stored state of a request cannot be decoded: {error}") from error
