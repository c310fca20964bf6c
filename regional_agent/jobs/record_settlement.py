"""Decides by the job store whether the tenant pays for requests whose agent died while it wrote their results."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from adapters.object_store.object_store import StoreUnavailable
from penstock.ledger.spool_format import SpoolFile
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse
from regional_agent.ledger.held_files import UnsettledFiles
from regional_agent.ledger.spool import Spool

LOOK_S: Final = 5.0
"""Interval (s) of looks for records that wait for a decision."""

log = structlog.get_logger()


class Settlement:
    """The records of one agent's spool that wait for a decision of the job store."""

    def __init__(self, stores: JobStoresInUse, spool: Spool | None) -> None:
        """Look into the folder of `spool`; None without a ledger."""
        self._stores = stores
        self._files = None if spool is None else UnsettledFiles(spool.folder, spool.boot)

    async def run(self) -> None:
        """Decide until cancelled."""
        while self._files is not None:
            for file in await asyncio.to_thread(self._files.find):
                try:
                    await self._settle(self._files, file)
                except StoreUnavailable as error:
                    log.warning("records of a job wait for the job store", error=str(error))
                except OSError as error:
                    log.error("records of a job cannot be written", error=str(error))
            await asyncio.sleep(LOOK_S)

    async def _settle(self, files: UnsettledFiles, file: SpoolFile) -> None:
        result = file.opening.result
        store = None if result is None else self._stores.of_region(result.region)
        counts = None if result is None or store is None else await store.batches.has_result(result)
        if counts is not None:
            await asyncio.to_thread(files.settle, file, counts=counts)
