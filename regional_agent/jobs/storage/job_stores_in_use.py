"""The job stores that the policy in force names for the region of this agent, and for lost regions."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from penstock.policy.kinds.jobs import JobStore
from regional_agent.config.active_config import ActiveConfig
from regional_agent.jobs.storage.batch_store import BatchStore
from regional_agent.jobs.storage.file_store import FileStore
from regional_agent.jobs.storage.job_storage import JobStorages
from regional_agent.jobs.storage.upload_store import UploadStore


class OpenStore(NamedTuple):
    """A job store, and access to what it has."""

    document: JobStore
    files: FileStore
    batches: BatchStore
    uploads: UploadStore


class JobStoresInUse:
    """Finds the job store of the region."""

    def __init__(self, region: str, config: ActiveConfig, storages: JobStorages, rng: Random) -> None:
        """Create the access to the store of `region`."""
        self.region = region
        self.lost: frozenset[str] = frozenset()
        """Other regions that are lost, whose jobs the agents of this region finish."""
        self._config = config
        self._storages = storages
        self._rng = rng

    @property
    def store(self) -> JobStore | None:
        """The document of the store; None if the region has none."""
        policy = self._config.policy
        return None if policy is None else policy.job_store(self.region)

    def opened(self) -> OpenStore | None:
        """Return the store; None if the region has none."""
        return None if (store := self.store) is None else self._open(store, self.region)

    def of_other_regions(self) -> list[OpenStore]:
        """Return the stores of the regions whose jobs the agents of this region may finish, one for each region."""
        policy = self._config.policy
        stores = () if policy is None else policy.job_stores or ()
        return [
            self._open(store, region)
            for store in stores
            if self.region in store.readers
            for region in sorted((store.covers or frozenset()) - {self.region})
        ]

    def of_region(self, region: str) -> OpenStore | None:
        """Return the store that has the jobs of a region, if this agent may run them."""
        if region == self.region:
            return self.opened()
        return next((each for each in self.of_other_regions() if each.batches.region == region), None)

    def worked_on(self) -> list[OpenStore]:
        """Return the stores whose open jobs this agent runs: that of the region, and those of lost regions."""
        own = self.opened()
        lost = [each for each in self.of_other_regions() if each.batches.region in self.lost] if self.lost else []
        return lost if own is None else [own, *lost]

    def inherited(self) -> list[OpenStore]:
        """Return the stores of other regions that are not the store of this region, one for each store."""
        own = self.store
        found = {each.document.url: each for each in self.of_other_regions()}
        return [each for url, each in found.items() if own is None or url != own.url]

    def _open(self, store: JobStore, region: str) -> OpenStore:
        storage = self._storages.of(store.url)
        return OpenStore(store, FileStore(storage, self._rng), BatchStore(storage, region), UploadStore(storage))
