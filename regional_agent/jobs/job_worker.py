"""Finds the batches and asynchronous requests of the region that no agent runs, claims them, and runs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from random import Random
from typing import Any, Final

import msgspec
import structlog

from adapters.object_store.object_store import StoreUnavailable
from penstock.fleet.jobs_report import MAX_BATCHES, MAX_TEXT, BatchReport, JobsReport
from penstock.jobs import store_paths
from penstock.jobs.async_request import JobEnd, JobState
from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.batches.request_line import LineProblem
from penstock.jobs.claims import LEASE_S, StoreLosses, UnchangedValues, may_claim, next_claim
from penstock.jobs.completion_window import expected_at, expected_of_waiting, shown_deadline
from penstock.jobs.job_order import RunningBatch, fair_order, request_shares
from penstock.jobs.job_records import BatchEnd, BatchRecord, Claim, JobSender
from penstock.jobs.request_queue import RequestQueue
from penstock.jobs.response_memory import ResponseMemory
from penstock.jobs.store_paths import JobPaths, OpenJob
from penstock.routing.reasons import Refusal
from regional_agent.background_tasks import cancel, wait_for_event
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.jobs.async_requests.pace_exchange import PaceExchange
from regional_agent.jobs.async_requests.request_run import RequestRun
from regional_agent.jobs.batches.batch_run import BatchRun
from regional_agent.jobs.internal_connection import InternalRequests
from regional_agent.jobs.job_metrics import JobMetrics
from regional_agent.jobs.request_attempts import RequestRunner
from regional_agent.jobs.storage.batch_store import BatchStore, ClaimLost, JobRecord
from regional_agent.jobs.storage.job_storage import UnreadableRecord
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse, OpenStore
from regional_agent.services.job_service import JobService

POLL_S: Final = 5.0
"""Interval (s) of looks for jobs that no agent runs."""

REFUSED_POLLS: Final = 6
"""Looks without a job at which the store failed."""

MISSING_S: Final = 3600.0
"""Time (s) after which the mark of a job that was never written is removed."""

UNREADABLE_S: Final = 300.0
"""Time (s) until the next look at a job that this agent cannot decode; other jobs run."""

MAX_TRACKED: Final = 10_000
"""Jobs of other agents of which this agent remembers when to look again."""

log = structlog.get_logger()

Connect = Callable[[JobSender, str, float], tuple[JobService, InternalRequests]]
"""Returns the service for a job's requests, and sends requests to it: by their sender, the region that accepted the
job, and the deadline (monotonic time, s)."""


class JobWorker:
    """Runs jobs. One for each agent; the store decides which agent runs a job."""

    def __init__(
        self,
        agent: AgentInstance,
        stores: JobStoresInUse,
        connect: Connect,
        memory: ResponseMemory,
        metrics: JobMetrics,
    ) -> None:
        """Create a worker, which `run` starts.

        Args:
            stores: the job store of the policy in force.
            connect: opens connections for the requests of a job.
            memory: bounds what the jobs hold.
        """
        self._agent = agent
        self._stores = stores
        self._connect = connect
        self._memory = memory
        self._metrics = metrics
        self._rng = Random()
        self._wake = asyncio.Event()
        self._batches: dict[str, BatchRun] = {}
        self._last_per_s = 0.0
        """Rate (requests/s) of the last batch that has ended here."""
        self._requests: dict[str, RequestRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        """Monotonic time (s) of the next look at a job."""
        self._held_until: dict[str, float] = {}
        """The same of a job that another agent runs, unless that agent gives it up."""
        self._claims_seen = UnchangedValues()
        """The ends of the newest claims of jobs that other agents run."""
        self._losses = StoreLosses()
        self.queue: Final = RequestQueue()
        self._paces = PaceExchange(agent.region, agent.name, self.queue)
        self._left: set[str] = set()
        """Jobs that this agent has given up because it stops."""
        self.problem = ""
        """Why the store cannot be used; empty while it can."""

    def wake(self) -> None:
        """Look for jobs now."""
        self._wake.set()

    async def run(self) -> None:
        """Look for jobs until cancelled."""
        while True:
            self._wake.clear()
            stores = self._stores.worked_on()
            self.queue.keep({store.batches.region for store in stores})
            problems = [problem for store in stores if (problem := await self._problem_of(store))]
            if problems and not self.problem:
                log.warning("a job store failed", errors=problems)
            self.problem = "; ".join(problems)
            # Agents look at different times.
            await wait_for_event(self._wake, at_least_s=0.2, at_most_s=POLL_S * (0.75 + self._rng.random() / 2))

    async def stop(self, is_kept: Callable[[BatchRun | RequestRun], bool] = lambda run: False) -> bool:
        """Stop all runs but those to keep, and give up their claims, after `run`; returns whether none is left."""
        every: list[BatchRun | RequestRun] = [*self._batches.values(), *self._requests.values()]
        runs = [run for run in every if not is_kept(run)]
        names = [run.record.id for run in runs if run.record.id in self._tasks]
        self._left.update(names)
        await cancel([self._tasks[name] for name in names])
        with suppress(StoreUnavailable):
            await asyncio.gather(*(run.give_up() for run in runs))
        for run in runs:
            run.held_records.abandon()
        return not self._tasks

    async def wait_for_end(self, timeout_s: float) -> None:
        """Return after a time, or earlier when a job that this agent runs has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    async def wait(self, job: str, timeout_s: float) -> None:
        """Return after a time, or earlier when this agent no longer runs a job that it runs now."""
        task = self._tasks.get(job)
        if task is None:
            await asyncio.sleep(timeout_s)
        else:
            await asyncio.wait({task}, timeout=timeout_s)

    def report(self) -> JobsReport | None:
        """Return the jobs for the control plane; None without a job store."""
        if self._stores.store is None:
            return None
        now = time.time()
        waiting, last_starts_at = self.queue.waiting(now)
        batches = tuple(
            BatchReport(
                batch,
                run.counts.completed,
                run.counts.failed,
                run.record.requests,
                shown_deadline(run.record.expires_at),
                expected_at(run.record, run.claim, now),
            )
            for batch, run in islice(self._batches.items(), MAX_BATCHES)
        )
        return JobsReport(len(self._requests), waiting, last_starts_at, batches, self.problem[:MAX_TEXT])

    def status(self) -> dict[str, Any]:
        """Return the fields of the status page."""
        report = self.report() or JobsReport()
        return {
            "store": None if self._stores.store is None else self._stores.store.name,
            "store_problem": report.problem or None,
            "requests": report.requests,
            "waiting_requests": report.waiting_requests,
            "last_request_starts_at": report.last_request_starts_at,
            "batches": {batch.id: msgspec.to_builtins(batch) for batch in report.batches},
        }

    def expected_of_waiting(self, batch: BatchRecord, now: float) -> int | None:
        """Return when (Unix time, s) a batch that no agent runs yet would be complete, by what this agent runs."""
        running = ((run.requests_left, run.per_s) for run in self._batches.values())
        return expected_of_waiting(batch.requests, running, self._last_per_s, now)

    def concurrency(self, batch: str) -> int:
        """Return how many requests a batch may run or queue at a time now."""
        store = self._stores.store
        limit = 1 if store is None else max(1, store.concurrency - len(self._requests))
        if len(self._batches) <= 1:
            return limit
        records = (
            RunningBatch(run.record.id, run.record.sender.tenant, run.record.expires_at, run.requests_left)
            for run in self._batches.values()
            if not run.is_stopped
        )
        return request_shares(limit, records).get(batch, 1)

    async def _problem_of(self, store: OpenStore) -> str:
        """Look for jobs in a store; returns why it cannot be used, or an empty text."""
        began_at = time.monotonic()
        try:
            await self._look(store)
        except StoreUnavailable as error:
            self._losses.failed(store.batches.region, began_at)
            return str(error)
        return ""

    async def _look(self, store: OpenStore) -> None:
        now = time.monotonic()
        if len(self._not_before) > MAX_TRACKED:
            self._not_before.clear()
        if len(self._held_until) > MAX_TRACKED:
            self._held_until.clear()
        jobs = fair_order(await store.batches.open_jobs(), self._tasks.keys(), self._rng)
        region = store.batches.region
        usable_s = self._losses.usable_s(region, time.monotonic())
        self.queue.ranked(region, [job.paths.id for job in jobs if not store_paths.is_batch(job.paths.id)])
        expired, concurrency = await self._expired(store, jobs), store.document.concurrency
        cancelled: set[str] | None = None
        for job in jobs:
            paths = job.paths
            if paths.id in self._tasks or self._not_before.get(paths.id, 0.0) > now:
                continue
            if not job.is_given_up and self._held_until.get(paths.id, 0.0) > now:
                continue
            running, limit = (
                (self._batches, MAX_BATCHES) if store_paths.is_batch(paths.id) else (self._requests, concurrency)
            )
            if len(running) >= limit:
                # What was cancelled or has expired ends at once.
                if cancelled is None:
                    cancelled = await store.batches.cancelled()
                if len(running) >= 2 * limit or (paths.id not in expired and paths.id not in cancelled):
                    continue
            if self._memory.is_full:
                break
            try:
                record = await self._read(store.batches, job)
                claim = None if record is None else await self._claim(store.batches, paths, usable_s)
                if record is not None and claim is not None:
                    await self._start(store, paths, record, claim)
                    if job.is_given_up:
                        await store.batches.storage.put(job.mark, b"")
            except UnreadableRecord as error:
                log.warning("a job cannot be read", job=paths.id, error=str(error))
                self._not_before[paths.id] = now + UNREADABLE_S
            except StoreUnavailable:
                # The next look begins with other jobs: the store may refuse the objects of this one alone.
                self._not_before[paths.id] = now + REFUSED_POLLS * POLL_S
                raise
        if region == self._stores.region:
            self.queue.runs(len(self._requests), concurrency, time.time())
            await self._paces.exchange(store.batches.storage)

    async def _expired(self, store: OpenStore, jobs: list[OpenJob]) -> set[str]:
        """Return the jobs whose deadline has passed, by the clock of this host and that of the store."""
        late = {job.paths.id: job.deadline_at for job in jobs if 0.0 < job.deadline_at <= time.time()}
        store_now = await store.batches.storage.now(self._rng.randbytes(8)) if late else 0.0
        return {job for job, deadline_at in late.items() if deadline_at <= store_now}

    async def _read(self, jobs: BatchStore, job: OpenJob) -> JobRecord | None:
        """Return the record of a job that has not ended; None otherwise. Removes the marks of other jobs."""
        paths = job.paths
        record = await jobs.record(paths)
        if record is None:
            now = time.monotonic()
            if now - self._not_before.setdefault(f"missing {paths.id}", now) > MISSING_S:
                await jobs.storage.delete_all(paths.data)
                await jobs.storage.delete_all(paths.body_size)
                await jobs.storage.delete(paths.cancellation)
                await jobs.storage.delete(job.mark)
            return None
        end = await jobs.find_end(paths)
        if end is None:
            return record
        await jobs.close(record, end)
        await jobs.storage.delete(job.mark)
        return None

    async def _claim(self, jobs: BatchStore, paths: JobPaths, usable_s: float) -> Claim | None:
        """Claim a job; None if another agent runs it. `usable_s`: see `may_claim`."""
        now, newest = time.time(), await jobs.newest_claim(paths)
        unchanged_s = 0.0
        if newest is not None:
            unchanged_s = self._claims_seen.unchanged_s(paths.id, newest.until, time.monotonic())
        # Names of agents are unique within a region.
        own, name = self._agent.region, self._agent.name
        agent = name if jobs.region == own else f"{own}/{name}"
        if not may_claim(newest, agent, self._agent.epoch, now, unchanged_s, usable_s):
            assert newest is not None
            self._held_until[paths.id] = time.monotonic() + min(newest.until - now, LEASE_S)
            return None
        claim = next_claim(newest, agent, self._agent.epoch, now)
        return claim if await jobs.claim(paths, claim) else None

    async def _start(self, store: OpenStore, paths: JobPaths, record: JobRecord, claim: Claim) -> None:
        deadline_at = time.monotonic() + record.expires_at - time.time()
        service, requests = self._connect(record.sender, store.batches.region, deadline_at)
        sender = service.sender()
        if isinstance(sender, Refusal):
            if store.batches.region != self._stores.region:
                # Another region may be permitted to finish the job.
                await store.batches.give_up(record, claim)
                self._not_before[record.id] = time.monotonic() + UNREADABLE_S
            elif sender.retry_after_s is None:
                await self._fail(store.batches, record, claim, sender)
            return
        # Before the run exists: what follows cannot fail.
        is_cancelled = await store.batches.is_cancelled(paths)
        runner = RequestRunner(requests, self._metrics, service.held_records)
        run: BatchRun | RequestRun
        if isinstance(record, BatchRecord):
            run = self._batches[record.id] = BatchRun(
                record, claim, store, runner, partial(self.concurrency, record.id), self._memory
            )
            if is_cancelled:
                run.stop_as(BatchState.CANCELLED)
        else:
            run = self._requests[record.id] = RequestRun(record, claim, store.batches, runner, self._memory)
            if is_cancelled:
                run.cancel()
        self._metrics.running.set(len(self._batches))
        self._tasks[record.id] = asyncio.create_task(self._run(run), name=f"job {record.id}")

    async def _fail(self, jobs: BatchStore, record: JobRecord, claim: Claim, refusal: Refusal) -> None:
        """End a job that the policy in force forbids."""
        log.warning("a job may not run", job=record.id, reason=refusal.reason.value)
        end: BatchEnd | JobEnd = JobEnd(JobState.FAILED, time.time(), error=refusal.detail, claim=claim.number)
        if isinstance(record, BatchRecord):
            problem = LineProblem(refusal.reason.value, refusal.detail)
            end = BatchEnd(
                BatchState.FAILED, time.time(), claim.counts, claim.started_at, errors=(problem,), claim=claim.number
            )
        if await jobs.end(record, end) and isinstance(end, BatchEnd):
            self._metrics.ended(end.state)

    async def _run(self, run: BatchRun | RequestRun) -> None:
        job, started_at = run.record.id, time.monotonic()
        try:
            end = await run.run()
        except ClaimLost:
            self._metrics.claims_lost.inc()
            log.warning("another agent continues a job", job=job)
        except StoreUnavailable as error:
            log.warning("a job was interrupted", job=job, error=str(error))
            delay_s = UNREADABLE_S if isinstance(error, UnreadableRecord) else POLL_S
            self._not_before[job] = time.monotonic() + delay_s
            with suppress(StoreUnavailable):
                await run.give_up()
        except Exception:
            log.exception("a job failed to run", job=job)
            self._not_before[job] = time.monotonic() + LEASE_S
        else:
            if isinstance(end, BatchEnd):
                self._last_per_s = (run.per_s if isinstance(run, BatchRun) else 0.0) or self._last_per_s
                self._metrics.ended(end.state)
                log.info("a batch has ended", batch=job, state=end.state.value, completed=end.counts.completed)
            elif isinstance(run, RequestRun) and end is not None and end.state is JobState.COMPLETED:
                self.queue.ended(run.record, time.monotonic() - started_at)
        finally:
            if job not in self._left:
                run.held_records.abandon()
            run.free_memory()
            self._batches.pop(job, None)
            self._requests.pop(job, None)
            self._tasks.pop(job, None)
            self._metrics.running.set(len(self._batches))
            self._wake.set()
