"""Sends the webhooks of jobs that have ended, and repeats failed ones: from the store, so that none is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from ipaddress import ip_network
from random import Random
from typing import Final

import structlog
from msgspec.structs import replace

from adapters.object_store.object_store import StoreUnavailable
from penstock.jobs import store_paths
from penstock.jobs.store_paths import EventPaths
from penstock.jobs.webhook import (
    ACCEPTED_S,
    DELAYS_S,
    Webhook,
    WebhookStep,
    after_attempt,
    is_ahead,
    next_step,
    parse_url,
    signature_of,
)
from regional_agent.background_tasks import wait_for_event
from regional_agent.jobs.job_metrics import JobMetrics, WebhookOutcome
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse, OpenStore
from regional_agent.jobs.webhooks.webhook_keys import WebhookKeys
from regional_agent.jobs.webhooks.webhook_request import WebhookClient, WebhookFailed

POLL_S: Final = 5.0
"""Interval (s) of looks for webhooks that are due."""

MAX_RUNNING: Final = 32
"""Attempts of one agent at a time."""

MAX_RUNNING_OF_TENANT: Final = 4
"""Attempts of one agent for one tenant at a time: a slow receiver delays the webhooks of its tenant alone."""

MAX_TRACKED: Final = 10_000
"""Webhooks of which this agent remembers when they are due."""

log = structlog.get_logger()


class WebhookSender:
    """Sends webhooks. Of the agents of a region, the store lets one begin each attempt."""

    def __init__(
        self,
        stores: JobStoresInUse,
        keys: WebhookKeys,
        client: WebhookClient,
        metrics: JobMetrics,
        rng: Random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare to send the webhooks in the job store of the region; `clock` returns Unix time (s)."""
        self._stores = stores
        self._keys = keys
        self._client = client
        self._metrics = metrics
        self._rng = rng
        self._clock = clock
        self._wake = asyncio.Event()
        self._running: dict[EventPaths, asyncio.Task[None]] = {}
        self._not_before: dict[EventPaths, float] = {}
        """Unix time (s) at which a webhook is due."""

    async def run(self) -> None:
        """Send webhooks until cancelled."""
        try:
            while True:
                self._wake.clear()
                try:
                    await self.look()
                except StoreUnavailable as error:
                    log.warning("the job store failed", error=str(error))
                await wait_for_event(self._wake, at_least_s=0.2, at_most_s=POLL_S * (0.75 + self._rng.random() / 2))
        finally:
            for task in self._running.values():
                task.cancel()

    async def look(self) -> None:
        """Begin the attempts that are due. Raises StoreUnavailable."""
        if not self._keys.are_set:
            return
        for store in self._stores.worked_on():
            await self._look(store)

    async def _look(self, store: OpenStore) -> None:
        now = self._clock()
        if len(self._not_before) > MAX_TRACKED:
            self._not_before.clear()
        running = Counter(paths.tenant for paths in self._running)
        for paths, attempts in (await self._pending(store)).items():
            if paths in self._running or is_ahead(self._not_before.get(paths, 0.0), now):
                continue
            if len(self._running) >= MAX_RUNNING or running[paths.tenant] >= MAX_RUNNING_OF_TENANT:
                continue
            running[paths.tenant] += 1
            self._running[paths] = asyncio.create_task(self._attempt(store, paths, attempts), name="webhook")

    async def _pending(self, store: OpenStore) -> dict[EventPaths, int]:
        """Return the number of attempts of each webhook; tenants in another order each time."""
        found: dict[str, dict[EventPaths, int]] = defaultdict(dict)
        for each in await store.files.storage.list(store_paths.webhooks(store.batches.region)):
            webhook = store_paths.webhook_attempts(each.path)
            if webhook is not None:
                paths, attempts = webhook
                found[paths.tenant][paths] = attempts
        tenants = list(found)
        self._rng.shuffle(tenants)
        return {paths: attempts for tenant in tenants for paths, attempts in found[tenant].items()}

    async def _attempt(self, store: OpenStore, paths: EventPaths, attempts: int) -> None:
        try:
            await self._send(store, paths, attempts)
        except StoreUnavailable as error:
            log.warning("the job store failed", error=str(error))
            self._not_before[paths] = self._clock() + POLL_S
        except Exception:
            log.exception("a webhook was not sent", job=paths.job)
            self._not_before[paths] = self._clock() + DELAYS_S[-1]
        finally:
            self._running.pop(paths, None)
            self._wake.set()

    async def _send(self, store: OpenStore, paths: EventPaths, attempts: int) -> None:
        storage, region, now = store.files.storage, store.batches.region, self._clock()
        webhook = await storage.find_record(paths.webhook(region, attempts), Webhook)
        if webhook is None:
            return
        step, url = next_step(webhook, attempts, now), parse_url(webhook.url)
        if step is WebhookStep.WAIT:
            self._not_before[paths] = webhook.due_at
            return
        if step is WebhookStep.GIVE_UP:
            store_now = await storage.now(self._rng.randbytes(8))
            if next_step(webhook, attempts, store_now) is not WebhookStep.GIVE_UP:
                log.error("a webhook is too old by this clock alone: check the clock of this host", job=paths.job)
                self._not_before[paths] = now + DELAYS_S[0]
                return
        if step is not WebhookStep.SEND or url is None:
            await storage.delete_all(paths.webhooks(region))
            if step is WebhookStep.GIVE_UP:
                self._metrics.webhook(WebhookOutcome.GIVEN_UP)
                log.warning("a webhook was given up", job=paths.job, tenant=paths.tenant)
            return
        next_one = after_attempt(webhook, attempts, now)
        if not await storage.put_new_record(paths.webhook(region, attempts + 1), next_one):
            return
        body = webhook.body.encode()
        headers = {
            "content-type": "application/json",
            "user-agent": "penstock",
            "webhook-id": webhook.id,
            "webhook-timestamp": str(int(now)),
            "webhook-signature": signature_of(self._keys.secrets_of(paths.tenant), webhook.id, int(now), body),
        }
        networks = [ip_network(network) for network in store.document.webhook_networks]
        try:
            await self._client.post(url, headers, body, networks)
        except WebhookFailed as error:
            self._metrics.webhook(WebhookOutcome.FAILED)
            log.info("a webhook was not accepted", job=paths.job, tenant=paths.tenant, host=url.host, reason=str(error))
            self._not_before[paths] = next_one.due_at
            return
        self._metrics.webhook(WebhookOutcome.DELIVERED)
        accepted = replace(webhook, due_at=now + ACCEPTED_S, body="", is_accepted=True)
        await storage.put_record(paths.webhook(region, attempts + 1), accepted)
        for attempt in range(attempts + 1):
            await storage.delete(paths.webhook(region, attempt))
