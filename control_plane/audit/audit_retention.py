"""Removal of old audit entries from the store: a block is verified, exported and removed, in this order.

The number and hash of the last removed entry stay in the store, signed, so that the rest of the chain can still be
verified, and so that the exported blocks and the rest are provably one chain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from adapters.access.callers import Caller, Role
from adapters.object_store.object_store import ObjectStore, StoreUnavailable
from adapters.object_store.store_opening import MissingPackages
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Delete, Put, Unchanged
from control_plane.audit.audit_log import PAGE, AuditedAction, AuditLog, ChangeRefused
from penstock.log_chains.audit_log_chain import AuditEntry, RemovedEntries, verify_chain

BLOCK: Final = PAGE
"""Number of entries that are removed at once: etcd permits 128 operations in a transaction."""

_log = structlog.get_logger(__name__)


class RemovalRefused(Exception):
    """Entries cannot be removed: they are damaged, or the archive is unavailable or has others in their place."""


class AuditRetention:
    """Removes entries that are older than the retention, whole blocks of them, oldest first."""

    def __init__(
        self,
        log: AuditLog,
        name: str,
        retention_s: float,
        archive: Callable[[], ObjectStore] | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the retention of a log.

        Args:
            name: of the control plane, for the entry of each removal.
            retention_s: age (s) from which entries are removed.
            archive: opens the store to which a block is exported before it is removed; None: it is dropped.
            clock: Unix time, in seconds.
        """
        self._log = log
        self._caller = Caller(name, Role.ADMIN)
        self._retention_s = retention_s
        self._archive = archive
        self._clock = clock

    async def remove_expired(self) -> int:
        """Remove all whole blocks whose entries are expired; returns the number of entries.

        Raises:
            RemovalRefused: a block is damaged, or the archive is unavailable or has another log.
            StoreError: the store is unavailable; the next call continues.
        """
        removed = 0
        while await self._remove_block():
            removed += BLOCK
        return removed

    async def _remove_block(self) -> bool:
        before, revision = await self._log.removed()
        first, last = before.removed_up_to + 1, before.removed_up_to + BLOCK
        block = await self._log.page(first, last)
        if len(block) < BLOCK:
            return False
        fault = verify_chain([before, *block])
        entries = [entry for entry in block if isinstance(entry, AuditEntry)]
        if fault is not None or len(entries) < BLOCK:
            problem = fault.problem if fault is not None else "it cannot be read"
            raise RemovalRefused(f"audit entry {fault.seq if fault is not None else first}: {problem}")
        if max(entry.at for entry in entries) > self._clock() - self._retention_s:
            return False
        end = RemovedEntries(last, entries[-1].hash)
        where = await self._export(before, entries)
        after = {"removed_up_to": last, "hash": end.hash, "archive": where}
        reason = "older than the retention"
        try:
            await self._log.record(
                AuditedAction(self._caller, "audit.remove", f"{first}-{last}", reason, after=after),
                expect=[Unchanged(keys.AUDIT_REMOVED, revision)],
                do=[
                    *(Delete(keys.audit_entry(number)) for number in range(first, last + 1)),
                    Put(keys.AUDIT_REMOVED, encode(end)),
                ],
            )
        except ChangeRefused:
            # Another control plane removed the block.
            return False
        _log.info("audit entries were removed", first=first, last=last, hash=end.hash, archive=where)
        return True

    async def _export(self, before: RemovedEntries, entries: list[AuditEntry]) -> str | None:
        """Write the block to the archive; returns the path there, None without an archive."""
        if self._archive is None:
            return None
        path = f"audit-{entries[0].seq:012d}-{entries[-1].seq:012d}.jsonl"
        lines = [*([before] if before.removed_up_to else []), *entries]
        content = b"".join(msgspec.json.encode(line, order="sorted") + b"\n" for line in lines)
        opened = self._archive
        await asyncio.to_thread(_put_once, opened, path, content)
        return path


def _put_once(opened: Callable[[], ObjectStore], path: str, content: bytes) -> None:
    try:
        archive = opened()
        is_same = archive.put_new(path, content) or archive.read(path) == content
    except (StoreUnavailable, MissingPackages) as error:
        raise RemovalRefused(f"the archive of audit entries: {error}") from None
    if not is_same:
        raise RemovalRefused(f"{path} in the archive has another log; give each fleet an archive of its own")
