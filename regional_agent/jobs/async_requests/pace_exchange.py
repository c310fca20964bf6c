"""Exchanges the paces of the agents that run asynchronous requests: by the store, so that forecasts include all."""

from __future__ import annotations

import time
from typing import Final

from penstock.jobs import store_paths
from penstock.jobs.queue_forecast import AgentPace
from penstock.jobs.request_queue import FORGOTTEN_S, RequestQueue
from regional_agent.jobs.storage.job_storage import JobStorage, UnreadableRecord

WRITE_S: Final = 5.0
"""Minimum interval (s) at which an agent writes its pace."""

READ_S: Final = 15.0
"""Minimum interval (s) at which an agent reads the paces of others: a region with many agents has many of them."""


class PaceExchange:
    """Writes the pace of this agent, and reads those of others into the queue."""

    def __init__(self, region: str, agent: str, queue: RequestQueue) -> None:
        """Prepare; `agent` is this agent's name in its region."""
        self._path = store_paths.pace(region, agent)
        self._folder = store_paths.paces(region)
        self._queue = queue
        self._written = queue.own
        self._write_at = self._read_at = 0.0
        """Monotonic times (s) of the next write, and of the next look at the paces of others."""

    async def exchange(self, storage: JobStorage) -> None:
        """Write the pace of this agent, and read those of others while requests wait.

        Raises:
            StoreUnavailable: the paces stay as they were.
        """
        own, written, now, at = self._queue.own, self._written, time.time(), time.monotonic()
        is_written = not written.running and own.mean_s is written.mean_s
        if (own.running or not is_written) and at >= self._write_at:
            self._write_at, self._written = at + WRITE_S, own
            await storage.put_record(self._path, own)
        if self._queue.unfinished <= own.running or at < self._read_at:
            return
        self._read_at = at + READ_S
        paces = []
        for each in await storage.list(self._folder):
            try:
                pace = None if each.path == self._path else await storage.find_record(each.path, AgentPace)
            except UnreadableRecord:
                # Of another release.
                continue
            if pace is not None and now - pace.at > FORGOTTEN_S:
                await storage.delete(each.path)
            elif pace is not None:
                paces.append(pace)
        self._queue.others = paces
