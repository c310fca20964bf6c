"""The job store that the policy in force names for the region of this agent."""

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
        store = self.store
        if store is None:
            return None
        storage = self._storages.of(store.url)
        return OpenStore(store, FileStore(storage, self._rng), BatchStore(storage, self.region), UploadStore(storage))
