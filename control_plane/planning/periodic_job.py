"""Periodic jobs: run at a fixed interval, or at once on request; one run at a time.

The scheduler alone would drop a request that arrives during a run, and the next run would start an interval later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from math import inf

import structlog
from apscheduler.job import Job
from apscheduler.schedulers.asyncio import AsyncIOScheduler

_log = structlog.get_logger(__name__)


class PeriodicJob:
    """Runs a job periodically and on request.

    Args:
        job: performs one run; returns False if the run should be retried; an exception is logged, and has
            the same effect.
        every_s: time between two runs, in seconds.
        apart_s: minimum time between the starts of two runs, including requested runs, in seconds.
        retry_s: time after a run that failed until its retry, in seconds; no effect from `every_s` on.
    """

    def __init__(
        self,
        job: Callable[[], Awaitable[bool | None]],
        every_s: float,
        *,
        apart_s: float = 0.0,
        retry_s: float = inf,
    ) -> None:
        self._do = job
        self._every_s = every_s
        self._retry_s = retry_s
        self._apart = timedelta(seconds=apart_s)
        self._job: Job | None = None
        self._wanted = False
        self._running = False
        self._began = datetime.min.replace(tzinfo=UTC)

    def start(self, scheduler: AsyncIOScheduler) -> None:
        """Schedule the job; a run that was requested earlier starts at once."""
        self._job = scheduler.add_job(self._run, "interval", seconds=self._every_s)
        if self._wanted:
            self._run_at(datetime.now(UTC))

    def stop(self) -> None:
        """Start no further run, requested or periodic. Called before the scheduler stops."""
        self._job = None

    def wake(self) -> None:
        """Run the job at once, or again after the current run, which may have started before the change."""
        self._wanted = True
        if not self._running:
            self._run_at(self._soonest())

    async def _run(self) -> None:
        self._running = True
        try:
            while True:
                self._wanted, self._began = False, datetime.now(UTC)
                if not await self._has_succeeded() and self._retry_s < self._every_s:
                    self._run_at(datetime.now(UTC) + timedelta(seconds=self._retry_s))
                if not self._wanted:
                    return
                # Repeats within this run: the scheduler skips every run that falls due during it.
                await asyncio.sleep((self._soonest() - datetime.now(UTC)).total_seconds())
        except asyncio.CancelledError:
            # The scheduler's shutdown cancels the current run, and would log the cancellation as a failure.
            return
        finally:
            self._running = False

    async def _has_succeeded(self) -> bool:
        try:
            return await self._do() is not False
        except Exception:
            # A run that fails must not lose a request that arrived during it.
            _log.exception("periodic job failed")
            return False

    def _soonest(self) -> datetime:
        return max(datetime.now(UTC), self._began + self._apart)

    def _run_at(self, at: datetime) -> None:
        if self._job is not None:
            self._job.modify(next_run_time=at)
