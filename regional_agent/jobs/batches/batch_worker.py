"""Finds the batches of the region that no agent runs, claims them, and runs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

import structlog

from adapters.object_store.object_store import StoreUnavailable
from penstock.jobs.batch_state import BatchState
from penstock.jobs.claims import LEASE_S, may_claim
from penstock.jobs.job_records import BatchCounts, BatchEnd, BatchRecord, Claim, JobSender
from penstock.jobs.request_line import LineProblem
from penstock.jobs.store_paths import BatchPaths
from penstock.routing.reasons import Refusal
from regional_agent.background_tasks import cancel, wait_for_event
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.jobs.batches.batch_run import BatchRun, ClaimLost
from regional_agent.jobs.internal_connection import InternalRequests
from regional_agent.jobs.job_metrics import JobMetrics
from regional_agent.jobs.storage.batch_store import BatchStore
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse, OpenStore
from regional_agent.services.job_service import JobService

POLL_S: Final = 5.0
"""Interval (s) of looks for batches that no agent runs."""

MAX_RUNS: Final = 32
"""Batches that one agent runs at a time."""

MISSING_S: Final = 3600.0
"""Time (s) after which the mark of a batch that was never written is removed."""

log = structlog.get_logger()

Connect = Callable[[JobSender], tuple[JobService, InternalRequests]]
"""Returns the service for the requests of a sender, and sends requests to it."""


class BatchWorker:
    """Runs batches. One for each agent; the store decides which agent runs a batch."""

    def __init__(
        self, agent: AgentInstance, stores: JobStoresInUse, connect: Connect, metrics: JobMetrics, rng: Random
    ) -> None:
        """Create a worker, which `run` starts.

        Args:
            stores: the job store of the policy in force.
            connect: opens connections for the requests of a batch.
        """
        self._agent = agent
        self._stores = stores
        self._connect = connect
        self._metrics = metrics
        self._rng = rng
        self._wake = asyncio.Event()
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        """Unix time (s) until which another agent's claim of a batch is valid."""
        self.problem = ""
        """Why the store cannot be used; empty while it can."""

    def wake(self) -> None:
        """Look for batches now."""
        self._not_before.clear()
        self._wake.set()

    async def run(self) -> None:
        """Look for batches until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self._look()
                self.problem = ""
            except StoreUnavailable as error:
                if not self.problem:
                    log.warning("the job store failed", error=str(error))
                self.problem = str(error)
            # Agents look at different times.
            await wait_for_event(self._wake, at_least_s=0.2, at_most_s=POLL_S * (0.75 + self._rng.random() / 2))

    async def stop(self) -> None:
        """Stop all runs, and give up their claims. Called after `run` was cancelled."""
        runs = list(self._runs.values())
        await cancel(self._tasks.values())
        await asyncio.gather(*(run.give_up() for run in runs))

    def status(self) -> dict[str, Any]:
        """Return the fields of the status page."""
        return {
            "store": None if self._stores.store is None else self._stores.store.name,
            "store_problem": self.problem or None,
            "batches": {
                batch: {"completed": run.counts.completed, "failed": run.counts.failed, "total": run.record.requests}
                for batch, run in self._runs.items()
            },
        }

    def concurrency(self) -> int:
        """Return how many requests each batch may run at a time now."""
        store = self._stores.store
        return 1 if store is None else max(1, store.concurrency // max(1, len(self._runs)))

    async def _look(self) -> None:
        store = self._stores.opened()
        if store is None:
            return
        now = time.time()
        for paths in await store.batches.open_batches():
            if len(self._runs) >= MAX_RUNS:
                return
            if paths.batch in self._runs or self._not_before.get(paths.batch, 0.0) > now:
                continue
            claim = await self._claim(store.batches, paths)
            if claim is not None:
                await self._start(store, paths, claim)

    async def _claim(self, batches: BatchStore, paths: BatchPaths) -> Claim | None:
        """Claim a batch; None if another agent runs it."""
        now, newest = time.time(), await batches.newest_claim(paths)
        if not may_claim(newest, self._agent.name, self._agent.epoch, now):
            assert newest is not None
            self._not_before[paths.batch] = newest.until
            return None
        number, started_at = (1, now) if newest is None else (newest.number + 1, newest.started_at)
        counts = BatchCounts() if newest is None else newest.counts
        claim = Claim(number, self._agent.name, self._agent.epoch, now + LEASE_S, started_at, counts)
        return claim if await batches.claim(paths, claim) else None

    async def _start(self, store: OpenStore, paths: BatchPaths, claim: Claim) -> None:
        batches = store.batches
        record, progress = await batches.find(paths), await batches.progress(paths)
        if record is None or progress.end is not None:
            if progress.end is not None or time.time() - claim.started_at > MISSING_S:
                await batches.storage.delete(paths.mark(batches.region))
            return
        service, requests = self._connect(record.sender)
        sender = service.sender()
        if isinstance(sender, Refusal):
            if sender.retry_after_s is None:
                await self._fail(batches, record, claim, sender)
            return
        run = BatchRun(record, claim, store, requests, self.concurrency, self._metrics)
        if progress.is_cancelled:
            run.stop_as(BatchState.CANCELLED)
        self._runs[record.id] = run
        self._metrics.running.set(len(self._runs))
        self._tasks[record.id] = asyncio.create_task(self._run(run), name=f"batch {record.id}")

    async def _fail(self, batches: BatchStore, record: BatchRecord, claim: Claim, refusal: Refusal) -> None:
        """End a batch that the policy in force forbids."""
        problem = LineProblem(refusal.reason.value, refusal.detail)
        end = BatchEnd(BatchState.FAILED, time.time(), claim.counts, claim.started_at, errors=(problem,))
        if await batches.end(BatchPaths(record.sender.tenant, record.id), end):
            self._metrics.ended(end.state)
        log.warning("a batch may not run", batch=record.id, reason=refusal.reason.value)

    async def _run(self, run: BatchRun) -> None:
        batch = run.record.id
        try:
            end = await run.run()
        except ClaimLost:
            self._metrics.claims_lost.inc()
            log.warning("another agent continues a batch", batch=batch)
        except StoreUnavailable as error:
            log.warning("a batch was interrupted", batch=batch, error=str(error))
            await run.give_up()
        except Exception:
            log.exception("a batch failed to run", batch=batch)
            self._not_before[batch] = time.time() + LEASE_S
        else:
            if end is not None:
                self._metrics.ended(end.state)
                log.info("a batch has ended", batch=batch, state=end.state.value, completed=end.counts.completed)
        finally:
            self._runs.pop(batch, None)
            self._metrics.running.set(len(self._runs))
            self._tasks.pop(batch, None)
            self._wake.set()
