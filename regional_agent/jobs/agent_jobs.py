"""The parts of an agent that serve and run jobs."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, Final

from penstock.jobs.batches.item_results import MAX_RESULT_BYTES
from penstock.jobs.job_records import JobSender
from penstock.jobs.response_memory import ResponseMemory
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.config.active_config import ActiveConfig
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.jobs.api.job_routes import JobRoutes
from regional_agent.jobs.async_requests.request_run import RequestRun
from regional_agent.jobs.batches.batch_run import BatchRun
from regional_agent.jobs.internal_connection import InternalRequests
from regional_agent.jobs.job_worker import JobWorker
from regional_agent.jobs.record_settlement import Settlement
from regional_agent.jobs.storage.expiry import Expiry
from regional_agent.jobs.storage.job_storage import JobStorages
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse
from regional_agent.jobs.storage.lost_regions import LostRegions
from regional_agent.jobs.webhooks.webhook_keys import WebhookKeys
from regional_agent.jobs.webhooks.webhook_request import WebhookClient
from regional_agent.jobs.webhooks.webhook_sender import WebhookSender
from regional_agent.ledger.held_files import HeldRecords
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.services.job_service import JobService

DRAIN_POLL_S: Final = 0.2
"""Interval (s) of looks for jobs that no target has any more, while the agent stops."""


class AgentJobs:
    """The job APIs of an agent, and the worker that runs batches. They do nothing while the policy has no job store."""

    def __init__(
        self,
        agent: AgentInstance,
        config: ActiveConfig,
        reader: ClientRequestReader,
        proxy: Proxy,
        rng: Random,
        webhook_keys: WebhookKeys | None = None,
    ) -> None:
        """Create the parts; `start` runs the worker.

        Args:
            config: the policy in force.
            reader: reads the requests of batches, as those of clients.
            proxy: sends requests to their targets.
            webhook_keys: sign webhooks; None sends none.
        """
        self._config = config
        self._reader = reader
        self._proxy = proxy
        metrics = proxy.metrics.jobs
        self._storages = JobStorages(metrics.store_failures.inc)
        stores = self.stores = JobStoresInUse(agent.region, config, self._storages, rng)
        self.memory = ResponseMemory()
        self.worker = JobWorker(agent, stores, self._connect, self.memory, metrics)
        self.expiry = Expiry(stores, rng)
        self.lost_regions = LostRegions(stores, rng)
        ledger = proxy.recorder.ledger
        self.settlement = Settlement(stores, None if ledger is None else ledger.spool)
        keys = webhook_keys or WebhookKeys()
        client = WebhookClient(cache(ssl.create_default_context))
        self.webhooks = WebhookSender(stores, keys, client, metrics, rng)
        self.routes = JobRoutes(stores, config, reader.authorization, self.worker, keys)
        self._tasks: list[asyncio.Task[None]] = []
        """First the one that starts jobs."""

    def _connect(self, sender: JobSender, region: str, deadline_at: float) -> tuple[JobService, InternalRequests]:
        service = JobService(self._reader, self._proxy, self._config, region, sender, deadline_at)
        header = self._reader.authorization.location_header
        return service, InternalRequests(service, self._proxy.limits, header, MAX_RESULT_BYTES, self.memory)

    def start(self) -> None:
        """Look for batches and run them, and delete what is no longer kept."""
        parts = {
            "batches": self.worker.run,
            "expiry": self.expiry.run,
            "webhooks": self.webhooks.run,
            "lost regions": self.lost_regions.run,
            "records of jobs": self.settlement.run,
        }
        self._tasks = [keep_running(name, run) for name, run in parts.items()]

    # Drainable

    def hand_over(self) -> None:
        """Do nothing: see `wait_drained`."""

    def stop_accepting(self) -> None:
        """Do nothing: jobs arrive at the listeners."""

    def refuse_uploads(self) -> None:
        """Do nothing: the listeners do."""

    async def wait_drained(self, grace_s: float) -> bool:
        """Wait up to `grace_s` (s) for the requests that a target has, and leave all others to other agents at once."""
        until = time.monotonic() + grace_s
        await cancel(self._tasks[:1])
        while not await self.worker.stop(self._at_targets()) and time.monotonic() < until:
            await self.worker.wait_for_end(DRAIN_POLL_S)
        return await self.worker.stop()

    async def drain(self, grace_s: float) -> int:
        """Stop all jobs."""
        await self.stop()
        return 0

    def _at_targets(self) -> Callable[[BatchRun | RequestRun], bool]:
        """Return whether a job has requests that a target may be running now: another run would be a further one."""
        names: dict[HeldRecords, set[str]] = {}
        for context in (exchange.context for exchange in self._proxy.active):
            if context.held_records is not None and context.attempts:
                names.setdefault(context.held_records, set()).add(context.request_id)

        def has_some(run: BatchRun | RequestRun) -> bool:
            of_job = names.get(run.held_records, set())
            return run.pause(of_job) if isinstance(run, BatchRun) else run.has_response or bool(of_job)

        return has_some

    async def stop(self) -> None:
        """Stop all jobs; other agents, or the next start, continue them."""
        await cancel(self._tasks)
        await self.worker.stop()
        await self.routes.completions.stop()
        self._storages.close()

    def status(self) -> dict[str, Any]:
        """Return the fields of the status page."""
        return self.worker.status() | {"other_regions": self.lost_regions.status()}
