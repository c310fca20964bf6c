"""Publishes this agent's load to the other agents of the region, and receives their loads, through Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from random import Random

import structlog
from msgspec import DecodeError
from redis.exceptions import RedisError

from adapters.backoff import full_jitter_s
from penstock.fleet.shared_counts import FRESH_S, IDLE_INTERVAL_S, LEASE_S, MIN_INTERVAL_S, exchange_interval_s
from penstock.wire.peer_keys import BadSignature
from penstock.wire.region_key import RegionKey
from regional_agent.background_tasks import cancel, keep_running, sleep_until_tick
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.shared_load.published_load import PublishedLoad, QueueSummary, open_load, seal_load
from regional_agent.shared_load.redis_script import EXCHANGE, MAX_LOAD_BYTES, RedisScript, RegionRedis, loads_key
from regional_agent.shared_load.shared_load import SharedLoad

TIMEOUT_S = 0.25
"""Timeout (s) of connecting; an exchange may take twice as long. Redis responds in a fraction of a millisecond."""

BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 1.0

FADE_INTERVAL_S = 0.1
"""Time (s) between two reductions of the weight of load that is no longer fresh."""

FAILURES = (RedisError, OSError, TimeoutError)
"""Exceptions that an exchange raises while Redis is unreachable."""

log = structlog.get_logger()


class SharedLoadExchange:
    """Publishes this agent's part of a SharedLoad, and updates the SharedLoad with the loads of the other agents."""

    def __init__(
        self,
        load: SharedLoad,
        queues: Callable[[], Mapping[str, QueueSummary]],
        on_received: Callable[[], None],
        redis: RegionRedis,
        agent: AgentInstance,
        rng: Random,
    ) -> None:
        """Create an exchange that is not connected before `start`.

        Args:
            load: has this agent's reservations, and receives the other agents' load.
            queues: this agent's admission queues by model.
            on_received: called after the other agents' load or queues have changed.
            redis: the Redis of the region.
            agent: this start of the agent.
            rng: jitter of reconnects.
        """
        self._load = load
        self._queues = queues
        self._on_received = on_received
        self._redis = RedisScript(redis.address, EXCHANGE, TIMEOUT_S)
        self._region_key = RegionKey(redis.keys, redis.region)
        self._key = loads_key(redis.region)
        self._rng = rng
        self._agent = agent
        load.agent = agent.name
        self._field = PublishedLoad(agent.name, agent.epoch, 0).field
        self._others_changed_at = -inf
        """Time (s) at which the load or the queues of other agents last changed."""
        self._number = 0
        """Sequence number of the last published load."""
        self._rejected: list[bytes] = []
        """Fields of the Redis hash that the next exchange deletes."""
        self._down_reason = ""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start exchanging load."""
        self._tasks = [
            keep_running("shared load", self._keep_exchanging),
            keep_running("shared load fade", self._keep_fading),
        ]

    async def stop(self) -> None:
        """Publish that this agent has no load, if Redis is reachable; otherwise its load loses weight and expires."""
        await cancel(self._tasks)
        self._tasks = []
        with suppress(*FAILURES):
            await self._exchange({}, {})
        await self._redis.aclose()
        self._load.up = False

    async def _keep_exchanging(self) -> None:
        failures = 0
        while True:
            began_at = time.monotonic()
            try:
                await self._exchange(self._load.begin_publishing(), self._queues())
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
                quiet_s = time.monotonic() - self._others_changed_at
                with suppress(TimeoutError):
                    async with asyncio.timeout(exchange_interval_s(quiet_s, requests_wait=bool(self._queues()))):
                        await self._load.changed.wait()

    async def _exchange(self, loads: dict[str, tuple[int, int, int]], queues: Mapping[str, QueueSummary]) -> None:
        began_at = time.monotonic()
        self._number += 1
        work = self._load.work_totals()
        idle_ms = self._load.idle_ms()
        agent, batch, asleep = self._agent, self._load.preemptible(), self._load.asleep()
        load = PublishedLoad(agent.name, agent.epoch, self._number, loads, dict(queues), work, idle_ms, batch, asleep)
        sealed = seal_load(load, self._region_key)
        if len(sealed) > MAX_LOAD_BYTES:
            log.warning("the load of this agent is too large for the other agents", size_bytes=len(sealed))
        async with asyncio.timeout(2 * TIMEOUT_S):
            reply = await self._redis.run((self._key,), (self._field, sealed, int(LEASE_S * 1000), *self._rejected))
        if not isinstance(reply, list) or len(reply) % 2 != 1:
            raise RedisError("the reply is not that of the script")
        omitted, *entries = reply
        if omitted:
            log.warning("loads of other agents do not fit in a reply of Redis", agents=omitted)
        self._rejected = []
        opened = self._opened(entries)
        has_changed = self._load.receive([load for _, load in opened], began_at)
        self._rejected += [field for field, load in opened if not self._load.is_live(load)]
        if has_changed:
            self._others_changed_at = began_at
            self._on_received()

    def _opened(self, entries: Sequence[bytes]) -> list[tuple[bytes, PublishedLoad]]:
        """Return the loads that agents of the region published, with their fields; rejects all other entries."""
        opened = []
        for field, sealed in zip(entries[::2], entries[1::2], strict=True):
            try:
                load = open_load(sealed, self._region_key)
                if field != load.field.encode():
                    raise BadSignature("the entry is stored under another name than its own")
            except (BadSignature, DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._load.rejected += 1
                self._rejected.append(field)
                log.warning("entry in Redis rejected", field=repr(field[:80]), reason=str(error))
            else:
                opened.append((field, load))
        return opened

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


assert 2 * IDLE_INTERVAL_S < FRESH_S
