"""When the policy source is looked at: at its own pace, and at once where somebody says that it changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from apscheduler.job import Job
from apscheduler.schedulers.asyncio import AsyncIOScheduler

RETRY_S = 5.0
"""A source that could not be read is looked at again after this long (s), where that is sooner."""

LEAST_PAUSE_S = 0.5
"""However often somebody says so, two looks begin at least this long (s) apart."""


class PolicyPolling:
    """Looks now and then, one look at a time.

    Args:
        look: one look; whether the source could be read.
        every_s: time between two looks, in seconds.
    """

    def __init__(self, look: Callable[[], Awaitable[bool]], every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._job: Job | None = None
        self._again = False
        self._looking = False
        self._began = datetime.min.replace(tzinfo=UTC)

    def start(self, scheduler: AsyncIOScheduler) -> None:
        """Begin to look."""
        self._job = scheduler.add_job(self._run, "interval", seconds=self._every_s)
        if self._again:
            self._schedule()

    def wake(self) -> None:
        """Look at once, or once more after the look under way: it may have begun before what changed."""
        self._again = True
        if self._job is not None and not self._looking:
            self._schedule()

    async def _run(self) -> None:
        self._again, self._looking, self._began = False, True, datetime.now(UTC)
        try:
            read = await self._look()
        except asyncio.CancelledError:
            # The scheduler's shutdown cancels what runs, and would tell of that as a failure.
            return
        finally:
            self._looking = False
        if self._again:
            self._schedule()
        elif not read and self._every_s > RETRY_S:
            self._schedule(after_s=RETRY_S)

    def _schedule(self, after_s: float = LEAST_PAUSE_S) -> None:
        assert self._job is not None
        self._job.modify(next_run_time=max(datetime.now(UTC), self._began + timedelta(seconds=after_s)))
