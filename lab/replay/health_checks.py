"""Probes the readiness of every entry, as the health checks of a geo-DNS do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from lab.replay.connection_pool import ConnectionPool
from lab.replay.entry import Entry, EntryHealth

PROBE_PATH = "/readyz"
INTERVAL_S = 0.25
TIMEOUT_S = 1.0
"""Timeout (s) of a probe: longer than any round trip on Earth, so that distant entries do not fail."""


class HealthChecks:
    """Runs one probe loop per URL of a health check."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Raises BadUrl if the URL of an entry is invalid."""
        self.health = {entry.checked_at: EntryHealth() for entry in entries}
        """Health by `Entry.checked_at`, updated by every probe."""
        self._pools = {url: ConnectionPool(url) for url in self.health}
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the probe loops."""
        step_s = INTERVAL_S / max(1, len(self.health))
        self._loops = [
            asyncio.create_task(self._probe_for_ever(url, index * step_s)) for index, url in enumerate(self.health)
        ]

    async def close(self) -> None:
        """Stop the probe loops."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for pool in self._pools.values():
            pool.close()

    async def _probe_for_ever(self, url: str, first_in_s: float) -> None:
        await asyncio.sleep(first_in_s)
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            self.health[url].observe(await self._probe(self._pools[url]))
            await asyncio.sleep(max(0.0, began_s + INTERVAL_S - loop.time()))

    async def _probe(self, pool: ConnectionPool) -> bool:
        probe = _Probe()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                connection = await pool.connection(TIMEOUT_S)
                try:
                    request = f"GET {PROBE_PATH} HTTP/1.1\r\nhost: {pool.authority}\r\n\r\n"
                    connection.send(request.encode(), probe)
                    return await probe.finished == 200
                finally:
                    if not probe.finished.done() or probe.finished.cancelled():
                        connection.close()
        except OSError:
            return False


class _Probe:
    """Receives the status of one probe."""

    def __init__(self) -> None:
        self.finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._status = 0

    def answered(self) -> None:
        pass

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status = status

    def body(self, piece: bytes) -> None:
        pass

    def ended(self) -> None:
        if not self.finished.done():
            self.finished.set_result(self._status)

    def broken(self, problem: str) -> None:
        if not self.finished.done():
            self.finished.set_result(0)
