"""Periodic jobs: run at a fixed interval, or at once on request; one run at a time.

The scheduler only requests runs, which a task performs. A run in the scheduler would not suffice: the scheduler drops a
request that arrives during a run, warns of each run that it skips, and logs a run that its shutdown cancels as failed.
It waits by the system clock: after that was set back by an hour, it would request no run for an hour. The task, whose
clock is monotonic, then schedules the job anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from math import inf

import structlog
from apscheduler.job import Job
from apscheduler.schedulers.asyncio import AsyncIOScheduler

OVERDUE_S = 1.0
"""Time (s) beyond the interval without a request after which a job is scheduled anew."""

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
        self._apart_s = apart_s
        self._retry_s = retry_s
        self._wanted = asyncio.Event()
        self._running = False
        self._scheduled: Job | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, scheduler: AsyncIOScheduler) -> None:
        """Schedule the job; a run that was requested earlier starts at once."""
        self._scheduled = scheduler.add_job(self._fall_due, "interval", seconds=self._every_s)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Cancel the current run, and start no further one."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def wake(self) -> None:
        """Run the job at once, or again after the current run, which may have started before the change."""
        self._wanted.set()

    async def _fall_due(self) -> None:
        if not self._running:
            self._wanted.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began = -inf
        while True:
            await self._wait_wanted()
            await asyncio.sleep(began + self._apart_s - loop.time())
            self._wanted.clear()
            self._running, began = True, loop.time()
            if not await self._has_succeeded() and self._retry_s < self._every_s:
                loop.call_later(self._retry_s, self._wanted.set)
            self._running = False

    async def _wait_wanted(self) -> None:
        while not self._wanted.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s + OVERDUE_S):
                    await self._wanted.wait()
            if not self._wanted.is_set() and self._scheduled is not None:
                self._scheduled.modify(next_run_time=datetime.now(UTC))

    async def _has_succeeded(self) -> bool:
        try:
            return await self._do() is not False
        except Exception:
            # A run that fails must not lose a request that arrived during it.
            _log.exception("periodic job failed")
            return False


async def stop_scheduler(scheduler: AsyncIOScheduler) -> None:
    """Stop a scheduler of periodic jobs; the runs that are due end first, since it would log that it cancelled them."""
    scheduler.pause()
    for _ in range(2):  # One turn of the event loop for the run, one for its callback.
        await asyncio.sleep(0)
    scheduler.shutdown(wait=False)
