"""Registration: a key that stays in the store while this process runs and renews its lease.

A registration is not a lock: a lost registration is created again, and a registration grants no exclusive right.
"""

from __future__ import annotations

import asyncio
from random import Random

import structlog

from adapters.backoff import full_jitter_s
from adapters.store.config_store import ConfigStore, LeaseLost, Put, StoreError

BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 1.0
RENEWALS_PER_TTL = 3
"""Number of renewals per duration of a lease: two renewals may fail before the lease expires."""

_log = structlog.get_logger(__name__)


class Registration:
    """Keeps `key` registered under a lease, and creates it again after the lease or the content of the store was lost.

    Args:
        store: the store of the key.
        key: the key to register; an existing value is replaced.
        value: value of the key.
        ttl_s: time to live of the lease: maximum time for which the key remains after this process ends, in seconds.
        rng: source of the jitter.
    """

    def __init__(self, store: ConfigStore, key: str, value: bytes, *, ttl_s: int, rng: Random) -> None:
        self._store = store
        self._key = key
        self._value = value
        self._ttl_s = ttl_s
        self._rng = rng
        self._lease_id = 0
        self.registered = False
        """Whether the last call to the store confirmed the registration."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the registration in a new task."""
        self._task = asyncio.create_task(self._run(), name=f"registration {self._key}")

    async def stop(self) -> None:
        """Stop, and delete the key from the store; if the store is unavailable, the key expires with the lease."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None
        self.registered = False
        if self._lease_id:
            try:
                await self._store.revoke_lease(self._lease_id)
            except StoreError as error:
                _log.warning("registration left to expire", key=self._key, reason=str(error))
            self._lease_id = 0

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._register_or_renew()
                failures = 0
                await asyncio.sleep(self._ttl_s / RENEWALS_PER_TTL)
                continue
            except LeaseLost as error:
                self._lease_id = 0
                reason = str(error)
            except StoreError as error:
                reason = str(error)
            except Exception:
                _log.exception("registration failed", key=self._key)
                reason = "unexpected error"
            self.registered = False
            if failures == 0:
                _log.warning("registration lost", key=self._key, reason=reason)
            wait_s = full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng)
            failures += 1
            await asyncio.sleep(wait_s)

    async def _register_or_renew(self) -> None:
        """Create or renew the lease, and write the key if it is not registered."""
        if self._lease_id:
            await self._store.keep_alive(self._lease_id)
            found = await self._store.get(self._key) if self.registered else None
            if self.registered and (found is None or not found.value):
                # The lease is valid, but the key is missing or its value is not authentic: an older holder overwrote
                # the key and its lease then expired, or another writer changed the key.
                self.registered = False
        else:
            self._lease_id = await self._store.grant_lease(self._ttl_s)
        if not self.registered:
            await self._store.commit((), (Put(self._key, self._value, self._lease_id),))
            self.registered = True
