"""Reads the KV events of engines that publish KV events, about twice a second. Requests never wait for a read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import structlog

from adapters.kv_event_reader import KvEventReader, MissingLibrary, ReadFailed
from penstock.kv_cache.held_prefixes import HeldPrefixes
from penstock.kv_cache.kv_event_log import KvEventLog

INTERVAL_S = 0.5
"""Interval (s) between two reads."""

TIMEOUT_S = 2.0
"""Timeout (s) of a read. After a failed read, prefixes of the endpoint are estimated until a read succeeds."""

FAILED_INTERVAL_S = 2.0
"""Interval (s) between two reads while they fail."""

REREAD_S = 0.05
"""Time (s) before the next read after a read with a gap."""

BATCHES_AT_ONCE = 16
"""Number of batches that are applied before the event loop serves requests again."""

log = structlog.get_logger()


class KvEventFollower:
    """The KV events of one endpoint."""

    def __init__(self, name: str, host: str, port: int, held: HeldPrefixes, rng: Random) -> None:
        """Create a follower that has read nothing.

        Args:
            name: name of the endpoint.
            port: port of the engine's replay endpoint.
            held: receives the blocks that the endpoint holds, while its events are current.
            rng: adds jitter to the interval.
        """
        self.log = KvEventLog()
        self.current = False
        """Whether the last read succeeded."""
        self.problem = ""
        """Why events are not read; empty if the last read succeeded."""
        self._name, self._host, self._port = name, host, port
        self._held = held
        self._rng = rng

    async def keep_following(self) -> None:
        """Read until cancelled."""
        try:
            reader = KvEventReader(self._host, self._port)
        except MissingLibrary as error:
            self.problem = str(error)
            log.error("KV events are not read", endpoint=self._name, reason=self.problem)
            await asyncio.Event().wait()
            return
        try:
            while True:
                wait_s = await self._read(reader)
                await asyncio.sleep(wait_s * self._rng.uniform(0.8, 1.2))
        finally:
            self._set_current(False)
            reader.close()

    def status(self) -> dict[str, Any]:
        """Return the fields for the status page."""
        events, blocks = self.log, self.log.blocks
        return {
            "prefixes": "exact" if self.current else "estimated",
            "problem": self.problem or events.problem or None,
            "complete": blocks.complete,
            "batches": events.batches,
            "gaps": events.gaps,
            "blocks": len(blocks),
            "stored": blocks.stored,
            "removed": blocks.removed,
        }

    async def _read(self, reader: KvEventReader) -> float:
        """Read once. Returns the time (s) until the next read."""
        try:
            entries = await reader.read(self.log.read_from, TIMEOUT_S)
        except ReadFailed as error:
            self.problem = str(error)
            self._set_current(False)
            return FAILED_INTERVAL_S
        self.problem = ""
        all_applied = await self._apply(entries)
        self._set_current(all_applied)
        return INTERVAL_S if all_applied else REREAD_S

    async def _apply(self, entries: Sequence[tuple[int, bytes]]) -> bool:
        """Apply batches, in parts that each begin with the last batch of the previous part; returns false at a gap."""
        for start in range(0, max(1, len(entries) - 1), BATCHES_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            if not self.log.receive(entries[start : start + BATCHES_AT_ONCE + 1]):
                return False
        return True

    def _set_current(self, current: bool) -> None:
        self.current = current
        if current:
            self._held.endpoints[self._name] = self.log.blocks
        elif self._held.endpoints.get(self._name) is self.log.blocks:
            del self._held.endpoints[self._name]
