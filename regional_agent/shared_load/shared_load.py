"""Work reserved by endpoint, over all agents of a region: the own at once, the others' through Redis.

A reservation never waits: it counts here, and a loop tells Redis within about 10 ms while there is something to tell.
With Redis away, what was heard of the others fades (`penstock.fleet.shared_counts`) and the own count remains.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from random import Random
from typing import Annotated, Any, TypeVar

import msgspec
import structlog
from redis.exceptions import RedisError

from adapters.backoff import full_jitter_s
from penstock.fleet.shared_counts import FRESH_S, LEASE_S, weight_at_age, weighted_count
from penstock.routing.placement import Reservation
from penstock.routing.pool_accounting import NO_LOAD, Load
from regional_agent.background_tasks import beat, cancel, keep_running
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.shared_load.script_connection import ScriptConnection
from regional_agent.shared_load.shared_load_script import (
    EXCHANGE,
    MAX_AGENTS,
    MAX_TOLD_BYTES,
    agent_prefix,
    index_key,
)

FLUSH_S = 0.01
"""Least time (s) between two exchanges: requests that come and go in it share one."""

IDLE_S = 0.1
"""Time (s) between two exchanges with nothing to tell, to renew the lease and hear of the others."""

TIMEOUT_S = 0.25
"""An exchange without an answer for this long (s) failed: Redis answers in a fraction of a millisecond."""

BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 1.0

FADE_S = 0.1
"""Time (s) between two looks at how old the others' counts have become."""

MAX_REQUESTS = 1_000_000
"""No agent has more on one endpoint; a count above is garbage."""

MAX_US = 10**13
"""Nor more work (microseconds): that is months of it."""

FAILURES = (RedisError, OSError, TimeoutError)
"""How Redis can be away."""

log = structlog.get_logger()

_Requests = Annotated[int, msgspec.Meta(ge=0, le=MAX_REQUESTS)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=3_600_000)]
_Work = Annotated[int, msgspec.Meta(ge=0, le=MAX_US)]


class Waiting(msgspec.Struct, array_like=True, frozen=True):
    """One agent's queue for one model."""

    requests: _Requests
    behind: int
    """Minus the priority of the first of them."""
    waited_ms: _Milliseconds
    """How long that one has waited, when this was said."""
    which: int
    """Tells that one from every other request of the region."""


class Told(msgspec.Struct, frozen=True):
    """What an agent tells the others of its region."""

    loads: dict[str, tuple[_Requests, _Work, _Work]]
    """By endpoint: requests, microseconds of prefill, microseconds of the rest; see `endpoint.Load`."""
    waiting: dict[str, Waiting] = {}
    """By model."""


_decoder = msgspec.json.Decoder(Told)


Reserved = TypeVar("Reserved", bound=Reservation[Any])


class SharedLoad:
    """This agent's reservations, and its share in the region's common view of them."""

    def __init__(
        self,
        region: str,
        agent: str,
        epoch: int,
        endpoints: EndpointSet,
        redis_url: str | None,
        rng: Random,
    ) -> None:
        """Connects to nothing before `start`.

        Args:
            region: what the agents share the view of.
            agent: unique in the region, the same after a restart.
            epoch: larger with every start of the agent, below 2**53.
            endpoints: whose views show the counts.
            redis_url: None for the only agent of a region, whose own counts are the whole view.
            rng: jitter of reconnects.
        """
        self.up = False
        """Whether the last exchange with Redis succeeded."""
        self._agent = agent
        self._epoch = epoch
        self._endpoints = endpoints
        self._redis_url = redis_url
        self._rng = rng
        self._index = index_key(region)
        self._prefix = agent_prefix(region)
        self.waiting_here: Callable[[], dict[str, Waiting]] = dict
        """What this agent tells of its own queues."""
        self.on_heard: Callable[[], None] = lambda: None
        """Called when the others have come to hold or to wait for something else."""
        self._others: dict[str, Load] = {}
        self._remote_queues: dict[str, list[Waiting]] = {}
        self._shown_weight = 0.0
        self._read_at = -inf
        self._news = asyncio.Event()
        self._has_news = False
        """The same, for those who would set it thousands of times a second."""
        self._name = agent
        """What its counts are told under: its own name, until a newer start has taken that over."""
        self._garbled = False
        self._why_down = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._redis: ScriptConnection | None = None

    @property
    def shared(self) -> bool:
        """Whether there is a Redis to share it through."""
        return self._redis_url is not None

    def reserve(self, reservation: Reserved) -> Reserved:
        """Count a reservation on its endpoint."""
        reservation.take()
        if not self._has_news:
            self.tell()
        return reservation

    def prefilled(self, reservation: Reservation[Any]) -> None:
        """Release the prefill of a reservation. A second call does nothing."""
        if reservation.end_prefill() and not self._has_news:
            self.tell()

    def release(self, reservation: Reservation[Any]) -> None:
        """Release all that a reservation still holds. A second call does nothing."""
        if reservation.release() and not self._has_news:
            self.tell()

    def tell(self) -> None:
        """Something has changed in what this agent has, or in its queues: before long the others are to know."""
        self._has_news = True
        self._news.set()

    def remote_queues(self, model: str) -> list[Waiting]:
        """The other agents' queues for a model; none while they are not heard of."""
        return self._remote_queues.get(model, []) if self._shown_weight > 0.0 else []

    def age_s(self) -> float:
        """Age (s) of what is known of the other agents; infinite before it was ever read, 0 where there are none."""
        return 0.0 if self._redis_url is None else time.monotonic() - self._read_at

    def start(self) -> None:
        """Begin to exchange counts with the other agents."""
        if self._redis_url is None:
            return
        self._redis = ScriptConnection(self._redis_url, EXCHANGE, TIMEOUT_S)
        self._tasks = [
            keep_running("shared view", self._keep_exchanging),
            keep_running("shared view fade", self._keep_fading),
        ]

    async def stop(self) -> None:
        """Take this agent's counts out of the view, if Redis can be told; else its lease runs out."""
        await cancel(self._tasks)
        self._tasks = []
        if self._redis is None:
            return
        with suppress(*FAILURES):
            await self._exchange(lease_s=0.0)
        await self._redis.aclose()
        self._redis = None
        self.up = False

    async def _keep_exchanging(self) -> None:
        failures = 0
        while True:
            began_at = time.monotonic()
            self._news.clear()
            self._has_news = False
            try:
                await self._exchange(LEASE_S)
            except FAILURES as error:
                self._went_down(error)
                wait_s = full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng)
                failures += 1
                await asyncio.sleep(max(FLUSH_S, wait_s))
                continue
            failures = 0
            self._came_up()
            await asyncio.sleep(max(0.0, began_at + FLUSH_S - time.monotonic()))
            if not self._has_news:
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_S if self.waiting_here() else IDLE_S):
                        await self._news.wait()

    async def _exchange(self, lease_s: float) -> None:
        assert self._redis is not None
        asked_at = time.monotonic()
        mine = msgspec.json.encode(Told(self._own(), self.waiting_here()))
        async with asyncio.timeout(2 * TIMEOUT_S):
            current, *told = await self._redis.run(
                (self._index, self._prefix + self._name),
                (self._name, self._epoch, int(lease_s * 1000), mine, self._prefix, MAX_AGENTS, MAX_TOLD_BYTES),
            )
        if not current:
            self._name = f"{self._agent}~{self._epoch}"
            log.warning("a newer start of this agent shares the view; this one stands beside it", agent=self._agent)
            self.tell()
        self._hear(told, asked_at)

    def _own(self) -> dict[str, tuple[int, int, int]]:
        """What this agent has by endpoint; two servers that had one name in turn count together."""
        own: dict[str, tuple[int, int, int]] = {}
        for endpoint in self._endpoints.every():
            one = endpoint.local_load
            if one.requests:
                requests, prefill_us, decode_us = own.get(endpoint.name, NO_LOAD)
                own[endpoint.name] = (
                    requests + one.requests,
                    prefill_us + one.prefill_us,
                    decode_us + one.decode_us,
                )
        return own

    def _hear(self, told: list[bytes], asked_at: float) -> None:
        others: dict[str, Load] = {}
        waiting: dict[str, list[Waiting]] = {}
        for said in told:
            try:
                one = _decoder.decode(said)
            except msgspec.DecodeError as error:
                if not self._garbled:
                    log.warning("what another agent tells is garbled and not used", error=str(error))
                self._garbled = True
                continue
            for name, (requests, prefill_us, decode_us) in one.loads.items():
                had = others.get(name, NO_LOAD)
                others[name] = Load(had.requests + requests, had.prefill_us + prefill_us, had.decode_us + decode_us)
            for model, queue in one.waiting.items():
                waiting.setdefault(model, []).append(queue)
        self._read_at = asked_at
        if others != self._others or waiting != self._remote_queues or self._shown_weight < 1.0:
            self._others, self._remote_queues = others, waiting
            self._show(1.0)
            self.on_heard()

    async def _keep_fading(self) -> None:
        while True:
            await beat(FADE_S)
            weight = weight_at_age(self.age_s())
            if weight < self._shown_weight:
                self._show(weight)

    def _show(self, weight: float) -> None:
        self._shown_weight = weight
        if weight >= 1.0:
            self._endpoints.set_remote_load(self._others)
        else:
            self._endpoints.set_remote_load(
                {name: Load(*(weighted_count(part, weight) for part in load)) for name, load in self._others.items()}
            )
            self.on_heard()

    def _went_down(self, error: Exception) -> None:
        if self.up or not self._why_down:
            self._why_down = str(error) or type(error).__name__
            log.warning("shared view is down; only own requests are counted", reason=self._why_down)
        self.up = False

    def _came_up(self) -> None:
        if not self.up:
            log.info("shared view is up")
        self.up = True


assert IDLE_S < FRESH_S
