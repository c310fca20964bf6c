"""An agent's three faces on real sockets, over real endpoints and reservations, with what it knows of the world fixed.

ActiveConfig and peers are what a test says they are; everything a request passes through is the real thing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass
from penstock.routing.region_selection import RegionView
from penstock.routing.weighted_sampler import samplers_of
from penstock.wire.signing import FleetKey
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.http.limits import Limits
from regional_agent.http.listener import Listener
from regional_agent.http.tls_contexts import ServerTls
from regional_agent.proxy.access_log import AccessLog
from regional_agent.proxy.proxy import Proxy
from regional_agent.routing.admission_queue import AdmissionQueue
from regional_agent.routing.locate import Locator
from regional_agent.routing.quotas import Quotas
from regional_agent.routing.router import Router
from regional_agent.services import PeerService, TrafficService
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.request_tally import RequestTally
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.planet import MODEL, policy

KEY = FleetKey(b"tests-only-tests-only-tests-only")
MAX_BODY_BYTES = 64 * 1024


class FixedPeers:
    """Other regions as a test says they are."""

    def __init__(self, addresses: Mapping[str, Address], credits: Mapping[str, int]) -> None:
        self.addresses = dict(addresses)
        self.credits = dict(credits)
        self.states = dict.fromkeys(addresses, RegionState.HEALTHY)
        self.broke: list[str] = []
        self.spent: list[str] = []

    def view(self, region: str, model: str, now: float) -> RegionView:
        return RegionView(self.state(region), ready=region in self.addresses, credits=self.credits.get(region, 0))

    def state(self, region: str) -> RegionState:
        return self.states.get(region, RegionState.UNKNOWN)

    def address(self, region: str) -> Address | None:
        return self.addresses.get(region)

    def broken(self, region: str, address: Address) -> None:
        self.broke.append(region)

    def spend(self, region: str, model: str) -> None:
        self.spent.append(region)


class FixedRuntime:
    """Stands where `regional_agent.runtime.AgentRuntime` does."""

    def __init__(
        self,
        endpoints: EndpointSet,
        region: str,
        policy: Policy | None,
        plan: RegionPlan | None,
        name: str = "agent-1",
        redis_url: str | None = None,
        metrics: AgentMetrics | None = None,
        locator: Locator | None = None,
    ) -> None:
        self.metrics = metrics or AgentMetrics()
        samplers = samplers_of(plan) if plan is not None else {}
        self.active_config = SimpleNamespace(policy=policy, plan=plan, policy_digest="digest", samplers=samplers)
        self.endpoints = endpoints
        self.shared_load = SharedLoad(region, name, 1, endpoints, redis_url, Random(1))
        self.admission_queue = AdmissionQueue(endpoints, self.shared_load, time.monotonic, self.metrics.waited)
        self.peers = FixedPeers({}, {})
        self.agents_here = 1
        self.quotas = Quotas(lambda: self.agents_here)
        self.location: Location = NOWHERE
        self.locator: Any = locator or SimpleNamespace(
            header=b"", generation=0, locate_client=lambda ip, forwarded_for, told: self.location
        )
        self.offered: list[tuple[str, str]] = []
        self.demand = SimpleNamespace(offered=self._offered)
        self.request_tally = RequestTally()

    def local_view(self, model: str, now: float) -> RegionView:
        pool = self.endpoints.pool(model)
        return RegionView(RegionState.HEALTHY, ready=pool.ready > 0, expected_wait_s=self.admission_queue.wait_s(model))

    def at_ease(self, model: str) -> bool:
        here = self.local_view(model, 0.0)
        return here.ready and here.expected_wait_s <= 0.0 and not self.admission_queue.is_awaited(model)

    def why_not_ready(self) -> str | None:
        return None if self.active_config.policy is not None else "no policy"

    def _offered(self, model: str, residency: ResidencyClass) -> None:
        self.offered.append((model, residency.name))


class Agent:
    """What a test has in hand."""

    def __init__(self, runtime: FixedRuntime, carrier: Proxy, traffic: Listener, metrics: AgentMetrics) -> None:
        self.runtime, self.carrier, self.listener, self.metrics = runtime, carrier, traffic, metrics
        self.traffic = self.peer = Address("", 0)

    def held(self) -> int:
        """Reservations that are out."""
        return sum(endpoint.local_load.requests for endpoint in self.runtime.endpoints.every())

    def waiting(self) -> int:
        """Requests that wait for room."""
        return self.runtime.admission_queue.waiting_here(MODEL)

    def counted(self) -> dict[str, float]:
        """`requests_total` by outcome."""
        found: dict[str, float] = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == "penstock_agent_requests_total":
                    outcome = sample.labels["outcome"]
                    found[outcome] = found.get(outcome, 0.0) + sample.value
        return found

    def waited(self) -> dict[str, float]:
        """`wait_seconds_count` by how the wait ended."""
        return {
            sample.labels["end"]: sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "penstock_agent_wait_seconds_count"
        }


@asynccontextmanager
async def agent(
    directory: Path,
    engines: Sequence[Address],
    *,
    region: str = "eu-de",
    slots: int = 4,
    queue: int = 4,
    anonymous: str | None = "open",
    plan: RegionPlan | None = None,
    peers: Mapping[str, Address] | None = None,
    credits: Mapping[str, int] | None = None,
    limits: Limits | None = None,
    trusted: bool = False,
    locator: Locator | None = None,
    tls: ServerTls | None = None,
    peer_tls: ServerTls | None = None,
    pool: UpstreamPool | None = None,
    peer_pool: UpstreamPool | None = None,
    access_log: AccessLog | None = None,
    port: int = 0,
    name: str = "agent-1",
    redis_url: str | None = None,
    models: Sequence[str] = (MODEL,),
) -> AsyncIterator[Agent]:
    """One agent of `region` in front of `engines`, each ready, with the test fleet's policy in force.

    Args:
        trusted: whether every client is a proxy of ours, as far as there is no `locator` that knows.
        locator: None locates nobody.
        redis_url: what it shares its view through with other agents of other names; None is the only agent.
    """
    connections = pool or UpstreamPool()
    endpoints = EndpointSet(_endpoints_file(directory, engines, slots, queue, models), connections, Random(1))
    for endpoint in endpoints.every():
        endpoint.probed(ProbeOutcome.GOOD)
    in_force = msgspec.structs.replace(policy(), anonymous_tenant=anonymous)
    metrics = AgentMetrics()
    metrics.use_names(in_force.models, in_force.regions)
    runtime: Any = FixedRuntime(endpoints, region, in_force, plan, name, redis_url, metrics, locator)
    runtime.peers = FixedPeers(peers or {}, credits or {})
    road = Router(region, cast(Any, runtime), KEY, Random(1), time.monotonic)
    bounds = limits or Limits(max_body_bytes=MAX_BODY_BYTES, idle_linger_s=0.0)
    carrier = Proxy(
        road,
        connections,
        metrics,
        bounds,
        via=b"1.1 agent-1.%b.test" % region.encode(),
        rng=Random(1),
        peer_pool=peer_pool,
        access_log=access_log,
    )
    carrier.start()
    runtime.shared_load.start()
    service = TrafficService(road, carrier, runtime)
    trusts = locator.trusts if locator is not None else lambda ip: trusted
    header = runtime.locator.header
    traffic = Listener(service, bounds, tls=tls, trusts=trusts, location_header=header)
    peer = Listener(PeerService(road, carrier, runtime), bounds, tls=peer_tls, location_header=header)
    one = Agent(runtime, carrier, traffic, metrics)
    one.traffic = Address(*await traffic.start("127.0.0.1", port), tls is not None)
    one.peer = Address(*await peer.start("127.0.0.1", 0), peer_tls is not None)
    try:
        yield one
    finally:
        for listener in (traffic, peer):
            listener.stop_accepting()
            await listener.drain(0.0)
        carrier.stop()
        runtime.admission_queue.close()
        await runtime.shared_load.stop()
        connections.close()
        if peer_pool is not None:
            peer_pool.close()


def _endpoints_file(directory: Path, engines: Sequence[Address], slots: int, queue: int, models: Sequence[str]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "endpoints.yaml"
    specs = [
        {
            "name": f"gpu-{n}",
            "url": f"{'https' if address.tls else 'http'}://{address}",
            "models": list(models),
            "slots": slots,
            "queue": queue,
        }
        for n, address in enumerate(engines)
    ]
    file.write_bytes(msgspec.yaml.encode(specs))
    return file
