"""An agent's listeners on real sockets, with real endpoints and reservations.

A test sets the configuration in force and the state of peers; all other components of the request path are real.
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
from msgspec.structs import replace

from adapters.access.key_access import KeyAccess
from adapters.tls_contexts import ServerTls
from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.engines.engine_kinds import EngineKind
from penstock.health.region_health import RegionState
from penstock.meters.demand_meter import DemandMeter
from penstock.meters.request_tally import RequestTally
from penstock.planning.plan import RegionPlan
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.jobs import JobStore
from penstock.policy.kinds.models import Scaling
from penstock.routing.endpoint_chooser import EndpointChooser
from penstock.routing.prefixes.prefix_sketch import NOTHING_HELD, Held
from penstock.routing.region_selection import RegionView
from penstock.routing.weighted_sampler import samplers_of
from penstock.wire.peer_keys import PeerKeys
from regional_agent.config.active_config import ActiveConfig
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.endpoints.endpoint_registration import Registrations
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.http.limits import Limits
from regional_agent.http.listener import Listener
from regional_agent.jobs.agent_jobs import AgentJobs
from regional_agent.ledger.request_ledger import RequestLedger
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.objects.region_objects import ObjectQueryReader, RegionObjects
from regional_agent.objects.shared_objects import SharedObjects
from regional_agent.proxy.outcome_recorder import OutcomeRecorder
from regional_agent.proxy.proxy import Proxy
from regional_agent.readiness import Readiness
from regional_agent.requests.authorization import Authorization
from regional_agent.requests.client_location import Locator
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.forwarded_request_reader import ForwardedRequestReader
from regional_agent.routing.attempt import LocalServices
from regional_agent.routing.explain_service import ExplainService
from regional_agent.routing.local_targets import LocalTargets
from regional_agent.routing.peer_targets import PeerTargets
from regional_agent.routing.queue_dispatcher import QueueDispatcher
from regional_agent.routing.router import Router
from regional_agent.services.admin_service import AdminPages, AdminService
from regional_agent.services.peer_service import PeerService
from regional_agent.services.traffic_service import TrafficService
from regional_agent.shared_load.redis_script import RedisAddress, RegionRedis
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.shared_load.shared_load_exchange import SharedLoadExchange
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.tracing.span_exporter import SpanExporter
from regional_agent.telemetry.tracing.tracer import Tracer
from regional_agent.tenants.tenant_index import TenantIndex
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_pool import UpstreamPool, UpstreamPools
from regional_agent.versions.shadow_requests import RequestCopies
from regional_agent.versions.version_tally import VersionTally
from tests.support.budgets import equal_budgets
from tests.support.identities import keys_between, region_keyring
from tests.support.planet import MODEL, policy
from tests.support.shared_loads import region_keys

MAX_BODY_BYTES = 64 * 1024


class FixedPeers:
    """Other regions, with states that a test sets."""

    def __init__(self, here: str, addresses: Mapping[str, Address], credits: Mapping[str, int]) -> None:
        self.here = here
        self.addresses = dict(addresses)
        self.credits = dict(credits)
        self.batch_credits: dict[str, int] = {}
        self.states = dict.fromkeys(addresses, RegionState.HEALTHY)
        self.answering: set[str] = set()
        """Regions whose agents answer although the region has failed."""
        self.awaited: set[str] = set()
        """Regions that have not answered yet since the start of the agent."""
        self.broke: list[str] = []
        self.spent: list[str] = []
        self.burst_room: dict[str, int] = {}
        self.holdings: dict[str, Held] = {}
        """What other regions hold of every prompt."""
        self.extends_text = True
        """Whether engines of the other regions can extend a text."""

    def view(self, region: str, model: str, now: float) -> RegionView:
        granted, for_batch = self.credits.get(region, 0), self.batch_credits.get(region, 0)
        is_ready = region in self.addresses
        return RegionView(
            self.state(region),
            is_ready,
            credits=granted,
            batch_room=for_batch,
            extends_text=self.extends_text,
            burst_room=self.burst_room.get(region, 0),
        )

    def held(self, region: str, prefix: Sequence[int]) -> Held:
        return self.holdings.get(region, NOTHING_HELD)

    def state(self, region: str) -> RegionState:
        return self.states.get(region, RegionState.UNKNOWN)

    def is_lost(self, region: str) -> bool:
        return self.state(region) is RegionState.FAILED and region not in self.answering

    def is_awaited(self, region: str) -> bool:
        return region in self.awaited

    def serve_any(self) -> bool:
        return RegionState.HEALTHY in self.states.values()

    def address(self, region: str) -> Address | None:
        return self.addresses.get(region)

    def peer_keys(self, region: str, address: Address) -> PeerKeys:
        return keys_between(self.here, region)

    def request_failed(self, region: str, address: Address) -> None:
        self.broke.append(region)

    def spend(self, region: str, model: str) -> None:
        self.spent.append(region)

    def spend_burst(self, region: str, model: str) -> None:
        self.burst_room[region] -= 1

    def spend_batch(self, region: str, model: str) -> None:
        self.batch_credits[region] -= 1


class Agent:
    """The parts of a running agent that tests inspect and change."""

    def __init__(
        self,
        config: Any,
        endpoints: EndpointSet,
        shared_load: SharedLoad,
        queue: QueueDispatcher,
        peers: FixedPeers,
        locator: Locator | None,
        metrics: AgentMetrics,
    ) -> None:
        self.config, self.endpoints, self.shared_load, self.queue = config, endpoints, shared_load, queue
        self.peers, self.metrics = peers, metrics
        self.agents_here = 1
        self.budgets = equal_budgets(agents=lambda: self.agents_here)
        self.location: Location = NOWHERE
        self.locator: Any = locator or SimpleNamespace(
            header=b"",
            generation=0,
            locate_client=lambda ip, forwarded_for, reported: self.location,
            client_address=lambda ip, forwarded_for: ip,
        )
        self.demand = DemandMeter(time.monotonic())
        self.tally = RequestTally()
        self.versions = VersionTally()
        self.exchange: SharedLoadExchange | None = None
        self.shared_objects: SharedObjects | None = None
        self.objects = KnownObjects()
        self.router: Router
        self.service: TrafficService
        self.proxy: Proxy
        self.jobs: AgentJobs
        self.listener: Listener
        self.peer_listener: Listener
        self.traffic = self.peer = Address("", 0)

    @property
    def offered(self) -> list[tuple[str, str]]:
        """Model and residency class of each request that the demand contains, by the first request of each kind."""
        return [
            (model, residency)
            for (model, residency, _), rate in self.demand._rates.items()
            for _ in range(rate.arrived)
        ]

    def held(self) -> int:
        """Number of active reservations."""
        return sum(endpoint.local_load.requests for endpoint in self.endpoints.every())

    def upstreams(self) -> list[UpstreamConnection]:
        """The connections to the targets of the requests in progress."""
        active: Any = self.proxy.active
        connections = (exchange._target.upstream for exchange in active)
        return [connection for connection in connections if connection is not None]

    def continue_streams(self, kind: EngineKind = EngineKind.VLLM) -> None:
        """Enable continuation of streams, and set the kind of all endpoints."""
        policy = self.config.policy
        models = {name: replace(model, continue_streams=True) for name, model in policy.models.items()}
        self.config.policy = replace(policy, models=models)
        for endpoint in self.endpoints.every():
            endpoint.set_kind(kind)

    def continued(self) -> dict[str, float]:
        """`stream_continuations_total` by outcome, without zeros."""
        return {
            sample.labels["outcome"]: sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "penstock_agent_stream_continuations_total" and sample.value
        }

    def retried(self) -> dict[str, float]:
        """`retries_total` by reason, without zeros."""
        return {
            sample.labels["reason"]: sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "penstock_agent_retries_total" and sample.value
        }

    def waiting(self) -> int:
        """Number of requests in the admission queue."""
        return self.queue.queues.waiting_here(MODEL)

    def counted(self) -> dict[str, float]:
        """`requests_total` by outcome, without zeros."""
        found: dict[str, float] = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == "penstock_agent_requests_total" and sample.value:
                    outcome = sample.labels["outcome"]
                    found[outcome] = found.get(outcome, 0.0) + sample.value
        return found

    def waited(self) -> dict[str, float]:
        """`queue_wait_seconds_count` by outcome, without zeros."""
        return {
            sample.labels["outcome"]: sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "penstock_agent_queue_wait_seconds_count" and sample.value
        }


@asynccontextmanager
async def running_agent(
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
    ledger: RequestLedger | None = None,
    exporter: SpanExporter | None = None,
    trace_share: float = 1.0,
    trace_slow_s: float = 30.0,
    port: int = 0,
    name: str = "agent-1",
    redis_url: str | None = None,
    models: Sequence[str] = (MODEL,),
    config: ActiveConfig | None = None,
    options: Mapping[str, Any] | None = None,
    cold_start_s: float = 0.0,
    job_store: JobStore | None = None,
    burst: Sequence[Mapping[str, Any]] = (),
) -> AsyncIterator[Agent]:
    """Run one agent of `region` in front of `engines`, which are ready, with the test fleet's policy in force.

    Args:
        trusted: whether every client is a trusted proxy if there is no `locator`.
        locator: None locates no client.
        redis_url: Redis through which agents of different names share load; None for the only agent.
        config: None for the test fleet's policy and `plan`.
        options: further fields of each endpoint's entry.
        cold_start_s: as of all models; 0: no request waits while no endpoint is ready.
        job_store: the policy's job store; None offers no jobs.
        burst: entries of burst endpoints, without their model.
    """
    connections = pool or UpstreamPool()
    fields = {"models": list(models), "slots": slots, "queue": queue, **(options or {})}
    file = _endpoints_file(directory, engines, fields, burst)
    endpoints = EndpointSet(EndpointSettings(file), connections, Random(1))
    for endpoint in endpoints.every():
        endpoint.probed(ProbeOutcome.GOOD)
    in_force = msgspec.structs.replace(policy(), anonymous_tenant=anonymous)
    starting = {name: replace(model, scaling=Scaling(cold_start_s)) for name, model in in_force.models.items()}
    in_force = replace(in_force, models=starting)
    if job_store is not None:
        in_force = replace(in_force, job_stores=(job_store,))
    metrics = AgentMetrics()
    metrics.use_names(in_force.models, in_force.regions)
    samplers = samplers_of(plan) if plan is not None else {}
    fixed = SimpleNamespace(policy=in_force, plan=plan, policy_digest="digest", samplers=samplers)
    fixed.tenants, fixed.issuers = TenantIndex(), None
    shared_load = SharedLoad(endpoints, shared=redis_url is not None)
    queues = metrics.queues
    queue_here = QueueDispatcher(
        endpoints, shared_load, time.monotonic, metrics.waited, queues.displaced, queues.preempted
    )
    others = FixedPeers(region, peers or {}, credits or {})
    agent = Agent(config or fixed, endpoints, shared_load, queue_here, others, locator, metrics)
    if redis_url is not None:
        redis = RegionRedis(RedisAddress(redis_url), region_keys(region), region)
        agent.exchange = SharedLoadExchange(
            shared_load,
            queue_here.summaries,
            queue_here.others_changed,
            redis,
            AgentInstance(region, name, 1),
            Random(1),
        )
        agent.exchange.start()
        agent.shared_objects = SharedObjects(
            RegionRedis(RedisAddress(redis_url), region_keys(region), region), Random(1)
        )
        agent.shared_objects.start()
    elsewhere = RegionObjects(AgentInstance(region, name, 1), cast(Any, others), peer_pool or connections)
    agent.objects = KnownObjects(agent.shared_objects, elsewhere)
    agent.router = _router(agent, region)
    bounds = limits or Limits(max_body_bytes=MAX_BODY_BYTES, idle_linger_s=0.0)
    tracer = Tracer(region, trace_share, trace_slow_s, exporter, Random()) if exporter is not None else None
    agent.proxy = Proxy(
        agent.router,
        UpstreamPools(connections, peer_pool),
        OutcomeRecorder(region, metrics, agent.tally, access_log, tracer, ledger),
        bounds,
        via=b"1.1 agent-1.%b.test" % region.encode(),
        rng=Random(1),
    )
    agent.proxy.recorder.versions = agent.versions
    agent.proxy.start()
    readiness = Readiness(agent.config, endpoints, others.serve_any)
    instance = AgentInstance(region, name, 1)
    jobs = agent.jobs = AgentJobs(instance, agent.config, agent.router.requests, agent.proxy, Random())
    jobs.start()
    service = agent.service = TrafficService(
        agent.router.requests, agent.proxy, agent.config, readiness, endpoints, jobs.routes
    )
    service.copies = RequestCopies(agent.proxy, agent.config, Random(1))
    forwarded = ForwardedRequestReader(
        region,
        agent.config,
        region_keyring(region),
        agent.router.requests.authorization,
        agent.router.local.chooser.expectations,
        agent.objects,
    )
    questions = ObjectQueryReader(region, region_keyring(region), agent.config)
    peer_service = PeerService(forwarded, agent.proxy, agent.config, cast(Any, None), questions)
    trusts = locator.trusts if locator is not None else lambda ip: trusted
    header = agent.locator.header
    agent.listener = Listener(service, bounds, tls=tls, trusts=trusts, location_header=header)
    peer = agent.peer_listener = Listener(peer_service, bounds, tls=peer_tls, location_header=header)
    agent.traffic = Address(*await agent.listener.start("127.0.0.1", port), tls is not None)
    agent.peer = Address(*await peer.start("127.0.0.1", 0), peer_tls is not None)
    try:
        yield agent
    finally:
        for listener in (agent.listener, peer):
            listener.stop_accepting()
            await listener.drain(0.0)
        await jobs.stop()
        await service.copies.stop()
        agent.proxy.stop()
        if ledger is not None:
            ledger.close()
        queue_here.close()
        if agent.exchange is not None:
            await agent.exchange.stop()
        if agent.shared_objects is not None:
            await agent.shared_objects.stop()
        connections.close()
        if peer_pool is not None:
            peer_pool.close()


def admin_service(
    agent: Agent, registrations: Registrations | None = None, access: KeyAccess | None = None
) -> AdminService:
    """The service of an agent's admin listener. Requests that need a missing argument fail; without `access` every
    caller has every role."""
    everybody = SimpleNamespace(require=lambda *_: None)
    return AdminService(
        agent.proxy,
        Readiness(agent.config, agent.endpoints, agent.peers.serve_any),
        access or cast(Any, everybody),
        cast(Any, registrations),
        AdminPages(
            ExplainService(agent.router, agent.config, agent.locator),
            lambda in_flight: None,
            lambda: {"jobs": agent.jobs.status()},
        ),
    )


def _router(agent: Agent, region: str) -> Router:
    rng, peers = Random(1), cast(Any, agent.peers)
    chooser = EndpointChooser(rng)
    authorization = Authorization(region, agent.config, agent.locator, agent.budgets)
    requests = ClientRequestReader(authorization, chooser.expectations, agent.objects, agent.demand, rng)
    services = LocalServices(region, agent.endpoints, agent.shared_load, chooser, agent.queue.queues)
    forwarding = PeerTargets(region, agent.config, peers, time.monotonic)
    sizes = agent.tally.message_bytes
    return Router(agent.config, requests, LocalTargets(services, agent.queue), forwarding, rng, sizes)


def _endpoints_file(
    directory: Path, engines: Sequence[Address], fields: Mapping[str, Any], burst: Sequence[Mapping[str, Any]]
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "endpoints.yaml"
    specs = [
        {"name": f"gpu-{n}", "url": f"{'https' if address.tls else 'http'}://{address}", **fields}
        for n, address in enumerate(engines)
    ]
    specs += [{"name": f"burst-{n}", "models": fields["models"], "burst": True, **each} for n, each in enumerate(burst)]
    file.write_bytes(msgspec.yaml.encode(specs))
    return file
