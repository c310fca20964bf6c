"""Empties the cache of the PowerDNS beside this agent when a region enters or leaves the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path

import structlog

from regional_agent.background_tasks import cancel, keep_running

CHECK_S = 0.05
"""Interval (s) of comparisons of what the answers depend on."""

PURGE_TIMEOUT_S = 1.0

MAX_REPLY_BYTES = 4096

log = structlog.get_logger()


class AnswerCache:
    """The cache of one PowerDNS, reached by its control socket (`pdns_control purge`)."""

    def __init__(self, control_socket: Path, basis: Callable[[], Hashable]) -> None:
        """Start without a connection; `basis` returns what answers depend on, and is compared with what it was."""
        self._path = control_socket
        self._basis = basis
        self._follower: asyncio.Task[None] | None = None
        self.failed = False
        """Whether PowerDNS could not be reached by the last attempt."""

    def start(self) -> None:
        """Start to compare."""
        self._follower = keep_running("cache of PowerDNS", self._follow)

    async def stop(self) -> None:
        """Stop to compare."""
        if self._follower is not None:
            await cancel([self._follower])

    async def _follow(self) -> None:
        purged_for = self._basis()
        while True:
            await asyncio.sleep(CHECK_S)
            basis = self._basis()
            if basis != purged_for and await self._purge():
                purged_for = basis

    async def _purge(self) -> bool:
        """Empty the cache; returns whether PowerDNS has done so. A PowerDNS that does not run has no cache."""
        try:
            async with asyncio.timeout(PURGE_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(str(self._path), limit=MAX_REPLY_BYTES)
                try:
                    writer.write(b"PURGE\n")
                    reply = await reader.readline()
                finally:
                    writer.close()
                    with suppress(OSError):
                        await writer.wait_closed()
        except (OSError, ValueError) as error:  # a timeout is an OSError
            if not self.failed:
                self.failed = True
                log.warning("the cache of PowerDNS was not emptied", socket=str(self._path), reason=str(error)[:200])
            await asyncio.sleep(PURGE_TIMEOUT_S)
            return False
        self.failed = False
        log.info("emptied the cache of PowerDNS", reply=reply[:100].decode("latin-1").strip())
        return True
