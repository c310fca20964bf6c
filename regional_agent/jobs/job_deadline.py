"""The end of a job's window: a job expires when it has passed by the clock of this host, and by that of the store."""

from __future__ import annotations

import os
import time
from typing import Final

import structlog

from regional_agent.jobs.storage.job_storage import JobStorage

ASK_S: Final = 300.0
"""Maximum time (s) between questions to the store, whose answer is 0 if it does not show what was just written."""

log = structlog.get_logger()


class JobDeadline:
    """The deadline of a job that this agent runs."""

    def __init__(self, job: str, expires_at: float, storage: JobStorage) -> None:
        """Follow the deadline at `expires_at` (Unix time, s) of a job in `storage`."""
        self._job = job
        self._expires_at = expires_at
        self._storage = storage
        self._at = time.monotonic() + expires_at - time.time()
        """Monotonic time (s): a clock that jumps expires no job that runs."""

    async def has_passed(self) -> bool:
        """Whether the deadline has passed. Asks the store only if it has by the clock of this host.

        Raises:
            StoreUnavailable: the store does not answer; call again.
        """
        if time.monotonic() < self._at:
            return False
        left_s = self._expires_at - await self._storage.now(os.urandom(8))
        if left_s > 0.0:
            log.error("a job has not expired by the clock of the store: check the clock of this host", job=self._job)
            self._at = time.monotonic() + min(left_s, ASK_S)
        return left_s <= 0.0
