"""Follows the tenants that the API creates: watched in the store, and kept on disk for starts without the store.

What was read stays in force: a shard that was removed from the store, cannot be decoded or is not authentic changes
nothing. Each shard has a file of its own, so that a change writes a few kilobytes.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from random import Random
from typing import Any, Final

import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, ConfigStore
from adapters.store.informer import Informer
from penstock.tenancy.tenant_record import SHARDS, TenantShard
from regional_agent.background_tasks import cancel
from regional_agent.config.state_file import StateFile
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
        self._informer = Informer(store, keys.TENANTS, self._on_published, rng=rng)
        self._unsaved: dict[int, TenantShard] = {}
        self._saving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Load the stored tenants and start to follow the store."""
        for number in range(SHARDS) if self._directory.is_dir() else ():
            stored = self._file(number).load()
            if stored is not None:
                self.index.put(number, stored)
        self._informer.start()

    async def wait_read(self) -> None:
        """Return once the store was read; the tenants in the store apply from then on."""
        await self._informer.wait_synced()

    async def stop(self) -> None:
        """Stop following the store; the tenants stay in force."""
        await self._informer.stop()
        await cancel([self._saving] if self._saving is not None else [])
        self._saving = None

    def status(self) -> dict[str, Any]:
        """Return the number of tenants and keys, and their age (s), for the status page."""
        age_s = self._informer.age_s
        known_age_s = round(age_s, 3) if age_s < math.inf else None
        return {"count": self.index.tenants, "keys": self.index.keys, "age_s": known_age_s}

    def _on_published(self, change: Changed) -> None:
        number = keys.tenant_shard_number(change.key)
        if number is None or number >= SHARDS:
            return
        if change.now is None:
            log.warning("a shard of tenants was removed from the store; its tenants stay in force", shard=number)
            return
        try:
            published = decode(change.now.value, TenantShard)
        except CodecError as error:
            log.error("a shard of tenants was not read; its last state stays in force", shard=number, reason=str(error))
            return
        kept = self.index.put(number, published, change.now.value)
        if kept is not None:
            self._unsaved[number] = kept
            if self._saving is None or self._saving.done():
                # A task, since a disk that stalls must not delay later changes.
                self._saving = asyncio.create_task(self._save())

    async def _save(self) -> None:
        while self._unsaved:
            unsaved, self._unsaved = self._unsaved, {}
            await asyncio.to_thread(self._write, unsaved)

    def _write(self, shards: dict[int, TenantShard]) -> None:
        for number, shard in shards.items():
            try:
                self._directory.mkdir(exist_ok=True)
                self._file(number).write(shard)
            except OSError as error:
                log.warning("tenants not written", shard=number, error=error.strerror)

    def _file(self, number: int) -> StateFile[TenantShard]:
        return StateFile(self._directory / f"{number:04d}", TenantShard)
