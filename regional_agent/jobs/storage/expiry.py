"""Deletes files, batches, asynchronous requests and uploads in parts by age."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from random import Random
from typing import Final

import structlog

from adapters.object_store.object_store import StoreUnavailable
from penstock.jobs import store_paths
from penstock.jobs.file_expiry import kept_since
from penstock.jobs.store_paths import Expiring
from regional_agent.jobs.storage.job_storage import JobStorage
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse, OpenStore

SWEEP_S: Final = 600.0
"""Mean interval (s) of looks for what is deleted by age. All agents of the regions that a store covers look."""

MAX_CLOCK_DIFFERENCE_S: Final = 3600.0
"""Difference (s) between the clocks of an agent and of the store from which the agent deletes nothing by age."""

MAX_EXPIRED: Final = 1000
"""Marks that one look reads."""

log = structlog.get_logger()


class Expiry:
    """Deletes what the policy in force keeps no longer."""

    def __init__(self, stores: JobStoresInUse, rng: Random) -> None:
        """Prepare for the job store of the region, which `run` looks at."""
        self._stores = stores
        self._rng = rng

    async def run(self) -> None:
        """Look for what is deleted by age until cancelled."""
        while True:
            # Agents look at different times.
            await asyncio.sleep(SWEEP_S * (0.5 + self._rng.random()))
            try:
                while await self.sweep(time.time()) == MAX_EXPIRED:
                    pass
            except StoreUnavailable as error:
                log.warning("the job store failed", error=str(error))

    async def sweep(self, now: float) -> int:
        """Delete what has expired at `now` (Unix time, s); returns the number of files and jobs, at most MAX_EXPIRED.
        What the store does not delete is deleted by a later call.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        store = self._stores.opened()
        if store is None:
            return 0
        storage = store.files.storage
        marks = await storage.first(store_paths.UPLOADING, MAX_EXPIRED)
        uploads = list(store_paths.expired_uploads(marks, now))
        marks = await storage.first(store_paths.EXPIRING, MAX_EXPIRED)
        found = list(store_paths.expired(marks, store.document.retention_s, now))
        if (uploads or found) and not await self._agrees_with_store(storage):
            return 0
        read: dict[str, set[str]] = {}
        deletions = [
            *((paths.id, partial(store.uploads.delete, paths, mark)) for paths, mark in uploads),
            *((each.id, partial(self._delete, store, each, read, now)) for each in found),
        ]
        kept = 0
        for identifier, delete in deletions:
            try:
                await delete()
            except StoreUnavailable as error:
                # The store may refuse the objects of this one alone.
                log.warning("what has expired was not deleted", id=identifier, error=str(error))
                kept += 1
        if deletions:
            log.info("files and jobs were deleted by age", number=len(deletions) - kept)
        return max(0, len(found) - kept)

    async def _agrees_with_store(self, storage: JobStorage) -> bool:
        """Whether the clock of this agent is about that of the store: one that jumped ahead would delete everything."""
        store_now = await storage.now(self._rng.randbytes(8))
        ahead_s = time.time() - store_now
        if abs(ahead_s) <= MAX_CLOCK_DIFFERENCE_S:
            return True
        log.error("nothing is deleted by age: check the clock of this host", ahead_of_store_s=round(ahead_s))
        return False

    async def _delete(self, store: OpenStore, expired: Expiring, read: dict[str, set[str]], now: float) -> None:
        """Delete a file or job; `read` has the files in use of the tenants that were looked at before."""
        tenant, identifier, _ = expired
        if not identifier.startswith(store_paths.FILE):
            await store.batches.delete_expired(expired)
            return
        if tenant not in read:
            regions = store.document.covers or frozenset({self._stores.region})
            read[tenant] = await store.batches.input_files(tenant, regions)
        record = await store.files.find_kept(tenant, identifier)
        since = kept_since(expired, record, store.document.retention_s, now, is_read=identifier in read[tenant])
        if since is not None:
            await store.files.storage.put(store_paths.expiring(tenant, identifier, since).mark, b"")
            await store.files.storage.delete(expired.mark)
        else:
            await store.files.delete_expired(expired)
