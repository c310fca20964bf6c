"""Follows the tenants that the API creates: watched in the store, and kept on disk for starts without the store.

Each shard has a file of its own, so that a change writes a few kilobytes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any, Final

import structlog

from adapters.store import keys
from adapters.store.config_store import ConfigStore
from penstock.tenancy.tenant_record import SHARDS, TenantShard
from regional_agent.config.followed_values import FollowedValues
from regional_agent.config.last_known_good import StateFile
from regional_agent.tenants.tenant_index import TenantIndex

DIRECTORY: Final = "tenants"
"""Name of the directory of the shards' files, in the state directory."""

log = structlog.get_logger()


class TenantRegistry:
    """Keeps `index` equal to the tenants in the store."""

    def __init__(self, store: ConfigStore, state_dir: Path, rng: Random) -> None:
        """Create an empty registry; `start` loads it.

        Args:
            state_dir: directory in which the registry keeps its files.
            rng: adds jitter to reconnects.
        """
        self.index = TenantIndex()
        """The tenants by key and by name."""
        self._directory = state_dir / DIRECTORY
        self._values = FollowedValues(store, keys.TENANTS, TenantShard, self._on_published, rng)
        self.wait_read = self._values.wait_read
        self.stop = self._values.stop
        self._unsaved: dict[int, TenantShard] = {}
        self._is_saving = False

    def start(self) -> None:
        """Load the stored tenants and start to follow the store."""
        for number in range(SHARDS) if self._directory.is_dir() else ():
            stored = self._file(number).load()
            if stored is not None:
                self.index.put(number, stored)
        self._values.start()

    def status(self) -> dict[str, Any]:
        """Return the number of tenants and keys, and their age (s), for the status page."""
        return {"count": self.index.tenants, "keys": self.index.keys, "age_s": self._values.age_s}

    def _on_published(self, digits: str, published: TenantShard, stored: bytes) -> None:
        number = keys.tenant_shard_number(keys.TENANTS + digits)
        if number is None or number >= SHARDS:
            return
        kept = self.index.put(number, published, stored)
        if kept is not None:
            self._unsaved[number] = kept
            if not self._is_saving:
                self._is_saving = True
                self._values.save(self._save())

    async def _save(self) -> None:
        try:
            while self._unsaved:
                unsaved, self._unsaved = self._unsaved, {}
                await asyncio.to_thread(self._write, unsaved)
        finally:
            self._is_saving = False

    def _write(self, shards: dict[int, TenantShard]) -> None:
        for number, shard in shards.items():
            try:
                self._directory.mkdir(exist_ok=True)
                self._file(number).write(shard)
            except OSError as error:
                log.warning("tenants not written", shard=number, error=error.strerror)

    def _file(self, number: int) -> StateFile[TenantShard]:
        return StateFile(self._directory / f"{number:04d}", TenantShard)
