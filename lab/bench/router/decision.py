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
from math import inf
from pathlib import Path
from random import Random

import msgspec

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Put
from lab.bench.router.chat import MODEL, Client, chat_request
from lab.bench.site import REGION
from lab.geoip import SITES, write_geoip
from lab.memory_store import MemoryStore
from lab.planet.bundle import load_bundle
from lab.quantile import quantile
from penstock.health.endpoint_health import ProbeOutcome
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.residency import residency_class
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routing.reasons import Refusal
from penstock.wire.authority import standalone_identity
from penstock.wire.identity import ProcessRole, SpiffeId
from penstock.wire.peer_keys import Keyring
from penstock.wire.region_key import KEY_BYTES, RegionKeys
from regional_agent.config.settings import load_settings
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.routing.router import Router
from regional_agent.runtime import AgentCredentials, AgentRuntime
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.upstream.upstream_pool import UpstreamPool, UpstreamPools

SLOTS = 8
"""Slots of each endpoint."""

BUSY_SHARE = 0.6
"""Share of all slots that is occupied during the measurement, so that loads differ but no endpoint is full."""


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


async def decision_costs(sizes: tuple[int, ...], times: int, directory: Path) -> list[DecisionCost]:
    """Measure the cost for each number of endpoints.

    Args:
        sizes: numbers of endpoints.
        times: decisions per number of endpoints.
        directory: an empty directory for the agent's files.
    """
    return [await _measure(size, times, directory / str(size)) for size in sizes]


async def _measure(size: int, times: int, directory: Path) -> DecisionCost:
    # A single agent always has a current view, so it scans all endpoints: the most frequent and most expensive case.
    runtime, router = await _agent(size, directory)
    bench = _Deciding(runtime, router, busy=int(size * SLOTS * BUSY_SHARE))
    try:
        bench.decide(max(times // 10, size * SLOTS))
        wholes, parts = bench.decide(times)
        bench.give_back()
    finally:
        await runtime.config.stop()
    return DecisionCost(size, _percentiles(wholes), _percentiles(parts))


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
            sender = router.requests.authorization.sender_of(self._policy, request, "127.0.0.1")
            if isinstance(sender, Refusal):
                raise RuntimeError(f"refused: {sender}")
            context = router.requests.read(self._policy, request, sender, now, inf, Limits().request_timeout_s)
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


async def _agent(size: int, directory: Path) -> tuple[AgentRuntime, Router]:
    """Start an agent's runtime, with policy and plan in force and every endpoint ready."""
    agent = SpiffeId("lab", ProcessRole.AGENT, "bench", REGION)
    store, pool, rng = MemoryStore(), UpstreamPool(), Random(1)
    runtime = AgentRuntime(
        load_settings(_settings(size, directory)),
        AgentCredentials(Keyring(standalone_identity(agent, time.time())), RegionKeys(secrets.token_bytes(KEY_BYTES))),
        UpstreamPools(pool),
        AgentMetrics(),
        rng,
        store,
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


def _settings(size: int, directory: Path) -> dict[str, object]:
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
