"""A job that is done again and again: at its own pace, and at once where somebody wants it, one run at a time.

The scheduler alone would skip what is wanted while a run is under way, and it would be done an interval later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from apscheduler.job import Job
from apscheduler.schedulers.asyncio import AsyncIOScheduler


class PeriodicJob:
    """Runs a job.

    Args:
        job: one run.
        every_s: time between two runs, in seconds.
        apart_s: however often it is wanted, two runs begin at least this long apart, in seconds.
    """

    def __init__(self, job: Callable[[], Awaitable[None]], every_s: float, *, apart_s: float = 0.0) -> None:
        self._do = job
        self._every_s = every_s
        self._apart = timedelta(seconds=apart_s)
        self._job: Job | None = None
        self._wanted = False
        self._running = False
        self._began = datetime.min.replace(tzinfo=UTC)

    def start(self, scheduler: AsyncIOScheduler) -> None:
        """Begin to run it."""
        self._job = scheduler.add_job(self._run, "interval", seconds=self._every_s)
        if self._wanted:
            self._run_at(datetime.now(UTC))

    def stop(self) -> None:
        """Begin no run any more, whoever wants one: the scheduler is about to stop."""
        self._job = None

    def wake(self) -> None:
        """Run it at once, or once more after the run under way: that may have begun before what changed."""
        self._wanted = True
        if not self._running:
            self._run_at(self._soonest())

    def again_after(self, after_s: float) -> None:
        """The next run begins after this long (s), unless it is wanted sooner."""
        self._run_at(datetime.now(UTC) + timedelta(seconds=after_s))

    async def _run(self) -> None:
        self._running = True
        try:
            while True:
                self._wanted, self._began = False, datetime.now(UTC)
                await self._do()
                if not self._wanted:
                    return
                # In this run: as long as it lasts, the scheduler would skip whatever is due.
                await asyncio.sleep((self._soonest() - datetime.now(UTC)).total_seconds())
        except asyncio.CancelledError:
            # The scheduler's shutdown cancels what runs, and would tell of that as a failure.
            return
        finally:
            self._running = False

    def _soonest(self) -> datetime:
        return max(datetime.now(UTC), self._began + self._apart)

    def _run_at(self, at: datetime) -> None:
        if self._job is not None:
            self._job.modify(next_run_time=at)
