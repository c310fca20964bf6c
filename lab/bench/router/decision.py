"""Cost of a routing decision without proxying: runs the agent's code in this process, from parsed head to reservation.

Every request passes steps 1 to 7: identify, classify, locate, residency mask, quota, region selection and endpoint
selection.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from random import Random

import msgspec

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Put
from adapters.store.memory_store import MemoryStore
from lab.bench.router.chat import MODEL, Client, chat_request
from lab.bench.site import REGION
from lab.geoip import SITES, write_geoip
from lab.planet.bundle import load_bundle
from lab.quantile import quantile
from penstock.health.endpoint_health import ProbeOutcome
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.residency import residency_class
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routing.reasons import Refusal
from penstock.wire.authority import standalone_identity
from penstock.wire.identity import ProcessRole, SpiffeId
from penstock.wire.region_key import KEY_BYTES, RegionKey, RegionKeys
from penstock.wire.session import Sessions
from regional_agent.config.settings import load_settings
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.routing.router import Router
from regional_agent.runtime import AgentRuntime
from regional_agent.shared_load.published_load import PublishedLoad, open_load, seal_load
from regional_agent.shared_load.redis_script import EXCHANGE, RedisAddress, RedisScript, loads_key
from regional_agent.shared_load.shared_load_exchange import TIMEOUT_S
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.upstream.upstream_pool import UpstreamPool

SLOTS = 8
"""Slots of each endpoint."""

BUSY_SHARE = 0.6
"""Share of all slots that is occupied during the measurement, so that loads differ but no endpoint is full."""

AWAITED = "awaited"
"""Region of the awaited exchanges. It differs from the agent's region, where every request would count twice."""

OTHER_AGENTS = 2
"""Number of other agents in the region AWAITED."""

_REGION_KEY = secrets.token_bytes(KEY_BYTES)
"""Key of all agents: the measurements of all sizes publish to the same Redis."""


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of a duration (µs)."""

    p50_us: float
    p99_us: float
    times: int


class DecisionCost(msgspec.Struct, frozen=True):
    """Cost of a decision with a given number of endpoints."""

    endpoints: int
    whole: Percentiles
    """All steps, from identification to the reservation."""
    where_and_who: Percentiles
    """Region selection, endpoint selection and reservation."""
    with_redis: Percentiles | None
    """All steps, then an exchange with Redis that includes the other agents' loads; None if not measured.
    The agent itself does not wait: it publishes to Redis within 10 ms."""


async def decision_costs(
    sizes: tuple[int, ...], times: int, directory: Path, redis_url: str | None
) -> list[DecisionCost]:
    """Measure the cost for each number of endpoints.

    Args:
        sizes: numbers of endpoints.
        times: decisions per number of endpoints; a tenth as many with Redis.
        directory: an empty directory for the agent's files.
        redis_url: None omits the figures with Redis.
    """
    return [await _measure(size, times, directory / str(size), redis_url) for size in sizes]


async def _measure(size: int, times: int, directory: Path, redis_url: str | None) -> DecisionCost:
    # A single agent always has a current view, so it scans all endpoints: the most frequent and most expensive case.
    async with _deciding(size, directory / "alone", None) as (_, bench):
        bench.decide(max(times // 10, size * SLOTS))
        wholes, parts = bench.decide(times)
    with_redis = None
    if redis_url:
        async with _deciding(size, directory / "shared", redis_url) as (runtime, bench):
            with_redis = await _with_redis(runtime, bench, redis_url, times // 10)
    return DecisionCost(size, _percentiles(wholes), _percentiles(parts), with_redis)


@asynccontextmanager
async def _deciding(size: int, directory: Path, redis_url: str | None) -> AsyncIterator[tuple[AgentRuntime, _Deciding]]:
    runtime, router = await _agent(size, directory, redis_url)
    bench = _Deciding(runtime, router, busy=int(size * SLOTS * BUSY_SHARE))
    try:
        yield runtime, bench
        bench.give_back()
    finally:
        await runtime.config.stop()
        for exchange in runtime.exchanges:
            await exchange.stop()


async def _with_redis(runtime: AgentRuntime, bench: _Deciding, redis_url: str, times: int) -> Percentiles:
    for exchange in runtime.exchanges:
        exchange.start()
    client = RedisScript(RedisAddress(redis_url), EXCHANGE, TIMEOUT_S)
    key = RegionKey(RegionKeys(_REGION_KEY), AWAITED)

    async def publish(agent: str) -> None:
        loads = {
            endpoint.name: (load.requests, load.prefill_us, load.decode_us)
            for endpoint in runtime.endpoints.every()
            if (load := endpoint.local_load).requests
        }
        own = PublishedLoad(agent, 1, 1, loads)
        _, *others = await client.run((loads_key(AWAITED),), (own.field, seal_load(own, key), 60_000))
        for sealed in others[1::2]:
            open_load(sealed, key)

    for number in range(OTHER_AGENTS):
        await publish(f"other-{number}")
    took = []
    bench.decide(max(times // 10, len(list(runtime.endpoints.every())) * SLOTS))
    for _ in range(times):
        began = time.perf_counter()
        bench.decide(1)
        await publish("bench")
        took.append(time.perf_counter() - began)
    await client.aclose()
    return _percentiles(took)


class _Deciding:
    """Makes decisions in a loop, with a constant number of requests in flight."""

    def __init__(self, runtime: AgentRuntime, router: Router, busy: int) -> None:
        self._router = router
        assert runtime.config.policy is not None
        self._policy = runtime.config.policy
        self._busy = busy
        self._held: deque[Attempt] = deque()
        rng = Random(1)
        self._requests = [_parsed(chat_request(Client(site.address(rng), "demo-open"), stream=False)) for site in SITES]
        self._number = 0

    def decide(self, times: int) -> tuple[list[float], list[float]]:
        """Return the duration (s) of each decision: of all steps, and of the selection steps."""
        router, held, clock = self._router, self._held, time.perf_counter
        wholes, parts = [], []
        for _ in range(times):
            self._number += 1
            request = self._requests[self._number % len(self._requests)]
            now = time.monotonic()
            began = clock()
            context = router.requests.read(self._policy, request, "127.0.0.1", now, inf, Limits().request_timeout_s)
            read_at = clock()
            if not isinstance(context, RequestContext):
                raise RuntimeError(f"refused: {context}")
            target = router.next_target(context, now)
            ended = clock()
            if isinstance(target, Refusal):
                raise RuntimeError(f"no target: {target}")
            wholes.append(ended - began)
            parts.append(ended - read_at)
            held.append(target)
            if len(held) > self._busy:
                held.popleft().settle(now, 1.0)
        return wholes, parts

    def give_back(self) -> None:
        """Settle the remaining reservations."""
        while self._held:
            self._held.popleft().settle(time.monotonic())


async def _agent(size: int, directory: Path, redis_url: str | None) -> tuple[AgentRuntime, Router]:
    """Start an agent's runtime, with policy and plan in force and every endpoint ready."""
    agent = SpiffeId("lab", ProcessRole.AGENT, "bench", REGION)
    store, pool, rng = MemoryStore(), UpstreamPool(), Random(1)
    runtime = AgentRuntime(
        load_settings(_settings(size, directory, redis_url)),
        sessions=Sessions(standalone_identity(agent, time.time())),
        pool=pool,
        metrics=AgentMetrics(),
        rng=rng,
        store=store,
        region_keys=RegionKeys(_REGION_KEY),
    )
    policy = load_bundle()
    everywhere = residency_class(frozenset(policy.regions))
    classes = (ClassPlan(MODEL, everywhere.name, (Arc(REGION, 1.0, ArcReason.HOME),), ()),)
    plan = RegionPlan(REGION, 1, 1, policy.digest(), 0.0, classes)
    await store.commit([], [Put(keys.policy(policy.digest()), encode(policy)), Put(keys.plan(REGION), encode(plan))])
    runtime.config.start()
    async with asyncio.timeout(10.0):
        while runtime.config.plan is None:  # noqa: ASYNC110 - the configuration has no event to wait for
            await asyncio.sleep(0.01)
    for endpoint in runtime.endpoints.every():
        endpoint.probed(ProbeOutcome.GOOD)
    return runtime, runtime.router


def _settings(size: int, directory: Path, redis_url: str | None) -> dict[str, object]:
    endpoints = [
        {
            "name": f"gpu-{number}",
            "url": f"http://127.0.0.1:{10_000 + number}",
            "models": [MODEL],
            "slots": SLOTS,
            "zone": f"zone-{number % 3}",
            "accelerator": "h100",
        }
        for number in range(size)
    ]
    directory.mkdir(parents=True)
    endpoints_file, geoip_file = directory / "endpoints.yaml", directory / "clients.mmdb"
    endpoints_file.write_text(json.dumps(endpoints), encoding="utf-8")
    write_geoip(geoip_file)
    return {
        "region": REGION,
        "name": "bench",
        "traffic_listen": "127.0.0.1:0",
        "peer_listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "etcd_endpoints": "127.0.0.1:1",
        "redis_url": redis_url,
        "endpoints_file": endpoints_file,
        "geoip_file": geoip_file,
        "identity_dir": directory / "unused",
        "state_dir": directory / "state",
        "trusted_proxies": "127.0.0.0/8",
    }


def _parsed(raw: bytes) -> Request:
    """Parse a request as the listener does."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    request = Request()
    request.method, request.target, _ = first.split(b" ")
    request.route = OPENAI_ROUTES[0]
    request.headers = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines)]
    request.path, request.body, request.whole = request.target, body, True
    request.length = request.received_bytes = len(body)
    return request


def _percentiles(took_s: list[float]) -> Percentiles:
    p50_us, p99_us = (round((quantile(took_s, part) or 0.0) * 1e6, 1) for part in (0.5, 0.99))
    return Percentiles(p50_us, p99_us, len(took_s))
