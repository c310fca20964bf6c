"""Finds the regions whose agents use their job store no longer, so that agents of other regions finish their jobs.

Each agent changes an object of its region. Claims make a wrong finding harmless: of two agents, one runs a job.
"""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Final

import structlog

from adapters.object_store.object_store import ObjectMissing, StoreUnavailable
from penstock.jobs import store_paths
from penstock.jobs.claims import UnchangedValues, is_lost
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse

BEAT_S: Final = 30.0
"""Interval (s) at which an agent changes the object of its region, and looks at those of others."""

log = structlog.get_logger()


class LostRegions:
    """The other regions whose jobs this agent may finish."""

    def __init__(self, stores: JobStoresInUse, rng: Random) -> None:
        """Prepare to find the regions of `stores.lost`; `run` does."""
        self._stores = stores
        self._rng = rng
        self._marks = UnchangedValues()
        self._unreadable: dict[str, str] = {}
        """Why the store of a region cannot be read."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(BEAT_S * (0.75 + self._rng.random() / 2))

    async def _look(self) -> None:
        own = self._stores.opened()
        if own is not None and len(own.document.readers) > 1:
            try:
                await own.files.storage.put(store_paths.alive(self._stores.region), self._rng.randbytes(8))
            except StoreUnavailable as error:
                log.warning("the job store failed", error=str(error))
        lost, unreadable = set(), {}
        for store in self._stores.of_other_regions():
            region = store.batches.region
            try:
                mark = await store.files.storage.read(store_paths.alive(region))
            except ObjectMissing:
                mark = b""
            except StoreUnavailable as error:
                unreadable[region] = f"the store {store.document.name} cannot be read: {error}"
                continue
            if is_lost(self._marks.unchanged_s(region, mark, time.monotonic())):
                lost.add(region)
        if lost != self._stores.lost:
            log.warning("the lost regions whose jobs run here", regions=sorted(lost), before=sorted(self._stores.lost))
        self._stores.lost, self._unreadable = frozenset(lost), unreadable

    def status(self) -> dict[str, str]:
        """Return what the status page shows of the regions."""
        lost = dict.fromkeys(self._stores.lost, "lost: other regions, such as this one, finish its jobs")
        return lost | {
            region: f"if the region is lost, its unfinished jobs are, too: {problem}"
            for region, problem in self._unreadable.items()
        }
