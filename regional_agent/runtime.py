"""Builds the parts of an agent, and starts and stops them in order. No part receives the runtime itself."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

from adapters.configuration.settings_loader import BadSettings
from adapters.etcd.etcd_store import EtcdStore
from adapters.files.watched_files import ReloadedFiles, Watched
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore
from adapters.store.lease import Registration
from adapters.store.members import AgentMember
from adapters.store.signed_store import SignedStore
from penstock.meters.demand_meter import DemandMeter
from penstock.meters.request_tally import RequestTally
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.routing.endpoint_chooser import EndpointChooser
from penstock.tenancy.agent_leases import LeaseHolder
from penstock.wire.peer_keys import Keyring
from penstock.wire.region_key import RegionKeys
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.config.active_config import ActiveConfig
from regional_agent.config.settings import PREFIX, AgentSettings
from regional_agent.config.settings_parts import (
    endpoint_settings,
    make_state_dir,
    redis_password,
    region_redis,
    tls_to_etcd,
)
from regional_agent.config.start_epoch import AgentInstance, next_epoch
from regional_agent.dns.dns_service import DnsService, EntryStates
from regional_agent.endpoints.endpoint_leases import LeaseFile
from regional_agent.endpoints.endpoint_registration import Registrations
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.kv_cache.prompt_tokens import PromptTokens
from regional_agent.ledger.capacity_recorder import CapacityRecorder
from regional_agent.ledger.request_ledger import RequestLedger
from regional_agent.ledger.uploader_process import UploaderProcess
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.objects.region_objects import ObjectQueryReader, RegionObjects
from regional_agent.on_demand.on_demand_models import OnDemandModels, OtherParts
from regional_agent.on_demand.wake_hooks import WakeHooks
from regional_agent.peers.agent_addresses import AgentAddresses, rivalry_of
from regional_agent.peers.credit_balances import CreditBalances
from regional_agent.peers.gateway_check import other_process_behind
from regional_agent.peers.peer_prober import CreditRequests, PeerProber
from regional_agent.peers.probe_responder import ProbeResponder
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
from regional_agent.shared_load.region_exchanges import RegionExchanges
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.agent_state import AgentState
from regional_agent.telemetry.report_builder import ReportBuilder, ReportSender
from regional_agent.telemetry.reporter import Reporter
from regional_agent.tenants.budget_exchange import BudgetExchange
from regional_agent.tenants.spent_money import SpentMoney
from regional_agent.tenants.tenant_budgets import TenantBudgets
from regional_agent.upstream.address import Address
from regional_agent.upstream.leader_link import ControlPlanes, LeaderLink
from regional_agent.upstream.upstream_pool import UpstreamPools
from regional_agent.versions.version_tally import VersionTally

ADDRESS_RETRY_S = 0.5
"""Interval (s) of the check whether another agent is registered at the address of this agent."""

REGISTRATION_TTL_S = 5
"""Time (s) until the registration of a failed agent expires; other regions detect the failure sooner by probes."""


class AgentCredentials(NamedTuple):
    """The keys of one agent."""

    keyring: Keyring
    """The identity of the agent, and the keys that it shares with other processes."""
    region_keys: RegionKeys | None = None
    """Authenticate the data shared with the region's other agents; required if Redis is configured."""
    redis_tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the TLS context for a new connection to Redis; None uses the system's trust store."""


class AgentRuntime:
    """The parts of one agent. An async context manager: starts them on entry, stops them on exit."""

    def __init__(
        self,
        settings: AgentSettings,
        credentials: AgentCredentials,
        pools: UpstreamPools,
        metrics: AgentMetrics,
        rng: Random,
        store: ConfigStore | None = None,
    ) -> None:
        """Build all parts without starting them.

        Args:
            settings: settings of this agent.
            pools: connections to endpoints, agents and control planes.
            metrics: the metrics that this agent exports to Prometheus.
            rng: jitter and random choices.
            store: the configuration store; None connects to the etcd of the settings.

        Raises:
            BadEndpointFile, BadGeoDatabase: a file that the settings name cannot be used.
            BadSettings: the state directory cannot be created.
        """
        self._settings = settings
        self._metrics = metrics
        self._rng = rng
        keyring = self._keyring = credentials.keyring
        self._registration: Registration | None = None
        self._peer_url = ""
        """The URL at which other regions reach this agent; empty before `announce`."""
        self._tasks: list[asyncio.Task[None]] = []
        region, name, clock = settings.region, settings.name, time.monotonic
        make_state_dir(settings.state_dir)
        agent = self.agent = AgentInstance(region, name, next_epoch(settings.state_dir, time.time()))
        etcd_files = None
        if store is None:
            etcd = EtcdStore(settings.etcd_endpoints, tls=tls_to_etcd(settings))
            store, etcd_files = SignedStore(etcd, keyring, prefix=settings.etcd_prefix), etcd.files
        self._store: ConfigStore = store
        self.ledger = RequestLedger(
            agent,
            settings.state_dir / "ledger",
            settings.ledger_spool_bytes,
            refuses_when_full=settings.ledger_when_full == "refuse",
        )
        self._uploader = UploaderProcess(settings.state_dir / "ledger", agent.epoch, self.ledger.store_url, rng)
        self.config = ActiveConfig(region, self._store, settings.state_dir, rng, self._on_policy, self._on_plan)
        self.locator = Locator(settings.geoip_file, settings.trusted_proxies, settings.location_header)
        chooser = EndpointChooser(rng)
        self.endpoints = EndpointSet(
            endpoint_settings(settings, rng),
            pools.endpoints,
            rng,
            on_ejected=metrics.endpoints.ejected,
            on_suspect=metrics.endpoints.became_suspect,
            held_prefixes=chooser.affinity.exact,
        )
        self._capacity = CapacityRecorder(self.ledger, self.endpoints.every, lambda: self.config.policy)
        self.registrations = Registrations(
            self.endpoints, settings.registration_token_file, lease_file=LeaseFile(settings.state_dir)
        )

        self._directory = AgentAddresses(
            self._store,
            settings.state_dir,
            settings.peer_urls,
            rng,
            keyring,
            allow_plaintext="peers" in settings.allow_plaintext,
        )
        self.shared_load = SharedLoad(
            self.endpoints,
            shared=settings.redis_url is not None,
            is_known=self._is_agent_here,
            clock=clock,
        )
        queues = metrics.queues
        self.queue = QueueDispatcher(
            self.endpoints, self.shared_load, clock, metrics.waited, queues.displaced, queues.preempted
        )
        password = redis_password(settings.redis_password_file) if settings.redis_password_file is not None else None
        redis = region_redis(settings, credentials.region_keys, credentials.redis_tls, password)
        self.exchanges = RegionExchanges(redis, agent, rng, metrics.result_cache)
        """The exchanges of data with the region's other agents; none if no Redis is configured."""
        self.exchanges.share_load(self.shared_load, self.queue.summaries, self.queue.others_changed)
        self.exchanges.share_prefixes(chooser.affinity, self._is_agent_here)
        self.demand = DemandMeter(clock())
        self.tally = RequestTally()
        self.versions = VersionTally()
        credits = CreditBalances(
            name, self.endpoints, self.queue.queues, self.demand, agents_here=self._agents_here, clock=clock
        )
        self.queue.promised = credits.granted
        self.peers = others = PeerProber(
            agent,
            keyring,
            pools.peers,
            self._directory,
            CreditRequests(credits.wanted, credits.batch_wanted, self.queue.credit_arrived),
            rng,
        )
        self.endpoints.serves_elsewhere = lambda model: bool(self.peers.waits_s(model))
        self.objects = KnownObjects(self.exchanges.objects, RegionObjects(agent, self.peers, pools.peers))
        self.object_queries = ObjectQueryReader(region, keyring, self.config)
        others_know = others.waits_s, others.regions_with, lambda: self.shared_load.is_complete
        self.on_demand = OnDemandModels(
            self.endpoints,
            self.queue.queues,
            WakeHooks(agent, pools.endpoints, settings.wake_token_file, redis),
            OtherParts(region, *others_know, self.demand.report, others.in_use),
            rng,
        )
        metrics.on_demand.models = self.on_demand
        serves, probed = self.peers.serve_any, self.peers.has_probed_all
        self.readiness = Readiness(self.config, self.endpoints, serves, probed, self.on_demand.can_wake_any)
        self.responder = ProbeResponder(agent, keyring, self.config, self.endpoints, self.queue.queues, credits)
        entries = EntryStates(region, self.readiness, self.endpoints, self.peers)
        self.responder.accepts_clients = entries.accepts_clients
        self.responder.on_wanted, self.responder.has_room = self.on_demand.wanted_by, self.on_demand.has_room
        self._dns = DnsService(settings, self.config, self._store, entries, self.locator, metrics)
        self._leader = LeaderLink(
            self._store,
            ControlPlanes(settings.control_plane_urls, "control-planes" in settings.allow_plaintext),
            pools.control_planes,
            keyring,
            rng,
        )
        self._budget_exchange = BudgetExchange(
            self._leader, LeaseHolder(name, region, agent.epoch), self._directory.count, clock
        )
        self.budgets = TenantBudgets(region, agent.epoch, self._budget_exchange.leases, self._directory.count)
        self._spent_money = SpentMoney(settings.state_dir, self.budgets)
        authorization = Authorization(region, self.config, self.locator, self.budgets)
        self.client_requests = ClientRequestReader(authorization, chooser.expectations, self.objects, self.demand, rng)
        self.forwarded_requests = ForwardedRequestReader(
            region, self.config, keyring, authorization, chooser.expectations, self.objects
        )
        self.prompt_tokens = PromptTokens(chooser.affinity.exact, pools.endpoints)
        services = LocalServices(region, self.endpoints, self.shared_load, chooser, self.queue.queues)
        local = LocalTargets(services, self.queue, self.prompt_tokens, self.on_demand)
        self.responder.publish_prefixes(local.hot_prefixes, chooser.affinity, clock)
        peers = PeerTargets(region, self.config, self.peers, clock)
        self.router = Router(self.config, self.client_requests, local, peers, rng, self.tally.message_bytes)
        self.responder.burst_offer = self.router.burst.offer
        self.explain_service = ExplainService(self.router, self.config, self.locator)

        files = ("endpoints", self.endpoints.sources), ("geoip", self.locator.geoip)
        self.reloaded_files: list[tuple[str, ReloadedFiles]] = [*files]
        """Files that this agent reads again when they change, by kind."""
        watched = {
            "registration_tokens": self.registrations.token_file,
            "etcd_tls": etcd_files,
            "redis_password": password,
        }
        self.reloaded_files += [(kind, files) for kind, files in watched.items() if files is not None]
        self.watched_files: list[Watched] = [files for files in watched.values() if files is not None]
        """Files that the caller checks for changes."""
        state = AgentState(
            self.config,
            self.endpoints,
            self.queue.queues,
            self.peers,
            self.tally,
            file_problems=self.file_problems,
            shared_load=self.shared_load,
            ledger=self.ledger,
            budgets=self.budgets,
            burst=self.router.burst,
            demand=self.demand,
            versions=self.versions.report,
        )
        self.update_metrics = partial(metrics.use_state, state)
        """Exports the state; called with the requests in progress by model, before a scrape."""
        self.reports = ReportBuilder(
            ReportSender(region, name, self.agent.epoch),
            state,
            credits,
            certificate_expires_at=lambda: keyring.identity.peer.not_after,
            clock=clock,
        )
        self._reporter = Reporter(self._leader, self.reports.build)
        self.peers.on_failed = self.config.issuers.on_asked = self._reporter.wake

    async def __aenter__(self) -> Self:
        self.endpoints.start()
        self._tasks.append(keep_running("registrations", self.registrations.keep_expiring))
        self._tasks.append(keep_running("models on demand", self.on_demand.keep_deciding))
        if self.locator.geoip.available:
            self._tasks.append(keep_running("geoip", self.locator.geoip.keep_reloading))
        self._tasks.append(keep_running("tokens of prompts", self.prompt_tokens.keep_asking))
        self._tasks.append(keep_running("GPU time of endpoints", self._capacity.keep_recording))
        self._tasks.append(keep_running("process that stores segments", self._uploader.run))
        self._directory.start()
        self.config.start()
        self._leader.start()
        self._spent_money.load()
        self._tasks.append(keep_running("spent money", self._spent_money.keep_saving))
        await self._dns.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.withdraw()
        await self._budget_exchange.stop()
        await self._spent_money.save()
        await self._reporter.stop()
        await self._leader.stop()
        await self.config.stop()
        await self._directory.stop()
        await self.peers.stop()
        self.queue.close()
        await self.exchanges.stop()
        await cancel(self._tasks)
        await self.on_demand.attempts.stop()
        self._capacity.close()
        await asyncio.to_thread(self.ledger.close)
        await self._uploader.stop()
        await self.endpoints.stop()
        await self._store.close()

    async def announce(self, *, peer_url: str, admin_url: str, to_peers: Callable[[], ssl.SSLContext]) -> None:
        """Register this agent in the store, and begin to report. Called once its listeners are open.

        Args:
            peer_url: URL of the peer listener; the setting `advertise_peer_url` overrides it.
            admin_url: URL of the admin listener; the setting `advertise_admin_url` overrides it.
            to_peers: returns the TLS context for connections to agents.

        Raises:
            BadSettings: other regions would reach another agent at the address of this one, or by its name.
        """
        settings = self._settings
        self._peer_url = settings.advertise_peer_url or peer_url
        member = AgentMember(
            settings.region,
            settings.name,
            self._peer_url,
            settings.advertise_admin_url or admin_url,
            self.agent.epoch,
            self.responder.certificate,
            settings.advertise_peer_server_name or "",
        )
        await self._require_no_rival(member)
        await self._require_own_name(to_peers)
        # Not before: under the name of a rival, they would displace what the rival has sent.
        self.exchanges.start()
        self._reporter.start()
        self._budget_exchange.start(self.budgets)
        own_key = keys.agent(settings.region, settings.name)
        self._registration = Registration(self._store, own_key, encode(member), ttl_s=REGISTRATION_TTL_S, rng=self._rng)
        self._registration.start()

    async def _require_no_rival(self, member: AgentMember) -> None:
        """Raise BadSettings if another agent is registered at the address, or by the name from another one, for longer
        than a crashed one would be."""
        until = time.monotonic() + REGISTRATION_TTL_S + 1.0
        while other := await self._directory.rival_of(member):
            if time.monotonic() > until:
                raise BadSettings(rivalry_of(member, other, PREFIX))
            await asyncio.sleep(ADDRESS_RETRY_S)

    async def _require_own_name(self, to_peers: Callable[[], ssl.SSLContext]) -> None:
        """Raise BadSettings if the gateway connects the name of this agent to another process."""
        name = self._settings.advertise_peer_server_name
        if name is None:
            return
        address = Address.parse(self._peer_url)._replace(server_name=name)
        if other := await other_process_behind(address, to_peers, self._keyring):
            raise BadSettings(
                f"{PREFIX}ADVERTISE_PEER_SERVER_NAME: the gateway at {address} connects {name} to another process"
                f" ({other}); let it select agents by the name of the TLS handshake (SNI), or run one agent behind it"
            )

    async def withdraw(self) -> None:
        """Begin to shut down: report not ready to clients and other regions, answer no more DNS queries, and delete the
        registration.

        If a successor already listens at the same peer URL, probes are answered as before, because other regions reach
        the successor there.
        """
        await self._dns.stop()
        self.readiness.shutting_down = True
        if not self.responder.shutting_down:
            self.responder.shutting_down = not await self._has_successor()
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.stop()

    def file_problems(self) -> dict[str, str]:
        """Return the problem of each kind of file that is read again; empty while the content is in force."""
        found = [(kind, files.problem or "") for kind, files in self.reloaded_files]
        found += [("endpoint_credentials", endpoint.problem) for endpoint in self.endpoints.every()]
        # Of several files of one kind, any problem is a greater text than the empty one.
        return {kind: max(problem for of, problem in found if of == kind) for kind, _ in found}

    def status(self) -> dict[str, Any]:
        """Return the content of the status page."""
        reason = self.readiness.not_ready_reason()
        return {
            "epoch": self.agent.epoch,
            "ready": reason is None,
            "not_ready_because": reason,
            **self.config.status(),
            "rejected_files": {kind: problem for kind, problem in self.file_problems().items() if problem},
            **self.endpoints.sources.discovery.status(),
            "shared_load": self.shared_load.status(),
            "budgets": self.budgets.status(),
            "objects": self.objects.status(),
            "ledger": self.ledger.status() | self._uploader.status(),
            "pools": self.reports.pools(),
            "groups": self.endpoints.groups.report(),
            "waiting": {model: self.queue.queues.waiting_here(model) for model in self.endpoints.pools},
            "endpoints": self.registrations.statuses(),
            "demand": self.demand.report(),
            "peers": self.peers.status(),
        }

    def _on_policy(self, policy: Policy) -> None:
        """Apply a policy that has come into force to the parts that depend on it."""
        self._metrics.use_policy(policy)
        self.ledger.use(policy)
        self.tally.use_objectives(policy.models)
        self.versions.use(policy)
        self.endpoints.use_policy(policy)
        self.on_demand.use_policy(policy)
        self.peers.use(policy)

    def _on_plan(self, plan: RegionPlan) -> None:
        """Apply the parts of a plan that concern versions of models and this region's endpoints."""
        self.client_requests.use_shares(plan)
        self.on_demand.plan = plan
        self.endpoints.use_drains({drained.name: drained.because for drained in plan.drained_endpoints})

    def _agents_here(self) -> tuple[str, ...]:
        """Return the names of this region's agents, sorted."""
        return self._directory.names(self._settings.region)

    def _is_agent_here(self, name: str) -> bool:
        """Whether an agent of this region has this name; true for all names while no registrations could be read."""
        return self._directory.may_have(self._settings.region, name)

    async def _has_successor(self) -> bool:
        # The registration is read from the store, because the directory may not yet contain a new successor.
        newest = await self._directory.read_member(self._settings.region, self._settings.name)
        return newest is not None and newest.epoch > self.agent.epoch and newest.peer_url == self._peer_url
