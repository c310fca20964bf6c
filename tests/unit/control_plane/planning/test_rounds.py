"""A requested job runs at once, and a request during a run is not lost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from structlog.testing import capture_logs

from control_plane.planning import periodic_job
from control_plane.planning.periodic_job import PeriodicJob, stop_scheduler
from tests.support.wait import until

NEVER_S = 3600.0


class Work:
    """Counts runs, whose duration a test sets."""

    def __init__(self) -> None:
        self.begun = self.ended = self.max_at_once = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self) -> None:
        self.begun += 1
        self.max_at_once = max(self.max_at_once, self.begun - self.ended)
        await self.go_on.wait()
        self.ended += 1


async def test_runs_repeat_at_the_interval(scheduler: AsyncIOScheduler) -> None:
    work = Work()
    PeriodicJob(work, 0.01).start(scheduler)
    await until(lambda: work.ended >= 3)


async def test_runs_go_on_after_the_system_clock_was_set_back(
    scheduler: AsyncIOScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic_job, "OVERDUE_S", 0.01)
    work = Work()
    PeriodicJob(work, 0.01).start(scheduler)
    await until(lambda: work.ended >= 1)
    (job,) = scheduler.get_jobs()
    job.modify(next_run_time=datetime.now(UTC) + timedelta(hours=1))
    ended = work.ended
    await until(lambda: work.ended >= ended + 5)
    assert job.next_run_time < datetime.now(UTC) + timedelta(minutes=30), "the scheduler requests runs again"


async def test_a_request_during_a_run_starts_another_run_after_it(scheduler: AsyncIOScheduler) -> None:
    work = Work()
    rounds = PeriodicJob(work, NEVER_S)
    rounds.start(scheduler)
    for times in range(1, 6):
        work.go_on.clear()
        rounds.wake()
        await until(lambda times=times: work.begun == 2 * times - 1)  # type: ignore[misc]
        rounds.wake()
        rounds.wake()
        work.go_on.set()
        await until(lambda times=times: work.ended == 2 * times)  # type: ignore[misc]
    assert work.max_at_once == 1


async def test_runs_keep_their_distance_however_often_requested(scheduler: AsyncIOScheduler) -> None:
    work, clock = Work(), asyncio.get_running_loop().time
    rounds = PeriodicJob(work, NEVER_S, apart_s=0.2)
    rounds.start(scheduler)
    since = clock()
    for times in range(1, 4):
        rounds.wake()
        await until(lambda times=times: work.ended == times)  # type: ignore[misc]
    assert clock() - since >= 0.35


async def test_a_request_before_the_start_is_not_lost(scheduler: AsyncIOScheduler) -> None:
    work = Work()
    rounds = PeriodicJob(work, NEVER_S)
    rounds.wake()
    rounds.start(scheduler)
    await until(lambda: work.ended == 1)


async def test_the_scheduler_logs_neither_a_long_nor_a_cancelled_run(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, work = AsyncIOScheduler(timezone="UTC"), Work()
    due = asyncio.Event()

    class Watched(PeriodicJob):
        """Reports that the scheduler requested a run."""

        async def _fall_due(self) -> None:
            await super()._fall_due()
            due.set()

    work.go_on.clear()
    rounds = [Watched(work, 0.01) for _ in range(20)]
    for each in rounds:
        each.start(scheduler)
    scheduler.start()
    await until(lambda: work.begun == 20)
    for _ in range(3):
        due.clear()
        await due.wait()
    for each in rounds:
        await each.stop()
    await stop_scheduler(scheduler)
    for _ in range(10):
        await asyncio.sleep(0)
    assert caplog.text == ""


async def test_a_request_after_the_end_starts_no_run() -> None:
    scheduler, work = AsyncIOScheduler(timezone="UTC"), Work()
    scheduler.start()
    rounds = PeriodicJob(work, NEVER_S)
    rounds.start(scheduler)
    await rounds.stop()
    await stop_scheduler(scheduler)
    rounds.wake()
    for _ in range(10):
        await asyncio.sleep(0)
    assert work.begun == 0


async def test_a_run_that_requests_a_retry_is_repeated_sooner(scheduler: AsyncIOScheduler) -> None:
    runs = 0

    async def work() -> bool:
        nonlocal runs
        runs += 1
        return runs >= 3

    rounds = PeriodicJob(work, NEVER_S, retry_s=0.02)
    rounds.start(scheduler)
    rounds.wake()
    await until(lambda: runs == 3)
    await asyncio.sleep(0.1)
    assert runs == 3, "the third run needs no retry"


class Failing(Work):
    """Raises in each of the first runs."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self._failures = failures

    async def __call__(self) -> None:
        await super().__call__()
        if self.begun <= self._failures:
            raise OSError("the disk is full")


async def test_a_request_during_a_run_that_fails_is_not_lost(scheduler: AsyncIOScheduler) -> None:
    work = Failing(1)
    work.go_on.clear()
    rounds = PeriodicJob(work, NEVER_S)
    rounds.start(scheduler)
    rounds.wake()
    await until(lambda: work.begun == 1)
    rounds.wake()
    with capture_logs() as logs:
        work.go_on.set()
        await until(lambda: work.ended == 2)
    assert [entry["event"] for entry in logs] == ["periodic job failed"]


async def test_a_run_that_fails_is_retried_sooner(scheduler: AsyncIOScheduler) -> None:
    work = Failing(2)
    rounds = PeriodicJob(work, NEVER_S, retry_s=0.02)
    rounds.start(scheduler)
    rounds.wake()
    await until(lambda: work.ended == 3)
