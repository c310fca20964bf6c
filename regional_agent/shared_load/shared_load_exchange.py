"""Exchanges load with the other agents of the region through Redis: publishes this agent's, receives theirs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random

import msgspec
import structlog
from redis.exceptions import RedisError

from adapters.backoff import full_jitter_s
from penstock.fleet.shared_counts import FRESH_S, LEASE_S
from regional_agent.background_tasks import cancel, keep_running, sleep_until_tick
from regional_agent.shared_load.redis_script import (
    EXCHANGE,
    MAX_AGENTS,
    MAX_LOAD_BYTES,
    RedisScript,
    agent_prefix,
    index_key,
)
from regional_agent.shared_load.shared_load import PublishedLoad, QueueSummary, SharedLoad

MIN_INTERVAL_S = 0.01
"""Minimum time (s) between two exchanges; requests that begin and end in between share one."""

IDLE_INTERVAL_S = 0.1
"""Time (s) between two exchanges while nothing changes, to renew the lease and to receive the others' load."""

TIMEOUT_S = 0.25
"""Timeout (s) of connecting; an exchange may take twice as long. Redis answers in a fraction of a millisecond."""

BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 1.0

FADE_INTERVAL_S = 0.1
"""Time (s) between two reductions of the weight of load that is no longer fresh."""

FAILURES = (RedisError, OSError, TimeoutError)
"""What an exchange raises while Redis is unreachable."""

log = structlog.get_logger()


class SharedLoadExchange:
    """Keeps a SharedLoad up to date, and the other agents informed."""

    def __init__(
        self,
        load: SharedLoad,
        queues: Callable[[], Mapping[str, QueueSummary]],
        on_received: Callable[[], None],
        *,
        redis_url: str,
        region: str,
        agent: str,
        epoch: int,
        rng: Random,
    ) -> None:
        """Create an exchange that is not connected before `start`.

        Args:
            load: this agent's reservations, and where received load goes.
            queues: this agent's admission queues by model.
            on_received: called after the other agents' load or queues have changed.
            redis_url: the Redis of the region.
            region: name of the region whose agents share their load.
            agent: name of this agent, unique in the region and the same after a restart.
            epoch: grows with every start of the agent; below 2**53.
            rng: jitter of reconnects.
        """
        self._load = load
        self._queues = queues
        self._on_received = on_received
        self._redis = RedisScript(redis_url, EXCHANGE, TIMEOUT_S)
        self._index = index_key(region)
        self._prefix = agent_prefix(region)
        self._agent = agent
        self._epoch = epoch
        self._rng = rng
        self._name = agent
        """The name that the load is published under: the agent's, until a newer start of the agent has replaced it."""
        self._down_reason = ""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to exchange load."""
        self._tasks = [
            keep_running("shared load", self._keep_exchanging),
            keep_running("shared load fade", self._keep_fading),
        ]

    async def stop(self) -> None:
        """Remove this agent's load from Redis if Redis is reachable; otherwise its lease expires."""
        await cancel(self._tasks)
        self._tasks = []
        with suppress(*FAILURES):
            await self._exchange(lease_s=0.0)
        await self._redis.aclose()
        self._load.up = False

    async def _keep_exchanging(self) -> None:
        failures = 0
        while True:
            began_at = time.monotonic()
            try:
                await self._exchange(LEASE_S)
            except FAILURES as error:
                self._set_down(error)
                wait_s = full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng)
                failures += 1
                await asyncio.sleep(max(MIN_INTERVAL_S, wait_s))
                continue
            failures = 0
            self._set_up()
            await asyncio.sleep(max(0.0, began_at + MIN_INTERVAL_S - time.monotonic()))
            if not self._load.changed.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(MIN_INTERVAL_S if self._queues() else IDLE_INTERVAL_S):
                        await self._load.changed.wait()

    async def _exchange(self, lease_s: float) -> None:
        began_at = time.monotonic()
        published = PublishedLoad(self._load.begin_publishing(), dict(self._queues()))
        encoded = msgspec.json.encode(published)
        async with asyncio.timeout(2 * TIMEOUT_S):
            is_current, *received = await self._redis.run(
                (self._index, self._prefix + self._name),
                (self._name, self._epoch, int(lease_s * 1000), encoded, self._prefix, MAX_AGENTS, MAX_LOAD_BYTES),
            )
        if not is_current:
            self._name = f"{self._agent}~{self._epoch}"
            log.warning("a newer start of this agent publishes under its name; renamed", agent=self._agent)
            self._load.publish()
        if self._load.receive(received, began_at):
            self._on_received()

    async def _keep_fading(self) -> None:
        while True:
            await sleep_until_tick(FADE_INTERVAL_S)
            if self._load.fade():
                self._on_received()

    def _set_down(self, error: Exception) -> None:
        if self._load.up or not self._down_reason:
            self._down_reason = str(error) or type(error).__name__
            log.warning("shared load is down; only this agent's requests are counted", reason=self._down_reason)
        self._load.up = False

    def _set_up(self) -> None:
        if not self._load.up:
            log.info("shared load is up")
        self._load.up = True


assert IDLE_INTERVAL_S < FRESH_S
