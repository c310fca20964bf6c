"""Everything an agent knows, started and stopped in the right order, and shown to whoever asks.

ActiveConfig say what is wanted; endpoints, the shared view and peers say what there is; the demand meter says what is
asked for; reports carry all of it upward. Each part lives on when the others are gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

from adapters.etcd.etcd_connection import Tls
from adapters.etcd.etcd_store import EtcdStore
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore
from adapters.store.lease import Registration
from adapters.store.members import AgentMember
from penstock.fleet.expected_wait import MEMORY_COMPLETIONS
from penstock.fleet.report import AgentReport, PoolReport
from penstock.health.endpoint_health import EndpointState
from penstock.health.outlier_ejection import EjectionRules
from penstock.health.region_health import RegionState
from penstock.policy.policy import Policy
from penstock.routing.region_selection import RegionView
from penstock.routing.spill_credits import wanted
from penstock.wire.signing import FleetKey
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.config.active_config import ActiveConfig
from regional_agent.config.settings import PREFIX, AgentSettings, BadSettings
from regional_agent.config.start_epoch import next_epoch
from regional_agent.endpoints.endpoint import OutlierDetection
from regional_agent.endpoints.endpoint_leases import LeaseMemory
from regional_agent.endpoints.endpoint_registration import Registrations
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_status import describe
from regional_agent.peers.agent_directory import AgentDirectory
from regional_agent.peers.peer_prober import PeerProber
from regional_agent.peers.probe_responder import ProbeResponder
from regional_agent.routing.admission_queue import AdmissionQueue
from regional_agent.routing.locate import Locator
from regional_agent.routing.quotas import Quotas
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.demand_meter import DemandMeter
from regional_agent.telemetry.endpoint_reports import EndpointReports
from regional_agent.telemetry.reporter import Reporter
from regional_agent.telemetry.request_tally import RequestTally
from regional_agent.telemetry.state_metrics import StateMetrics
from regional_agent.upstream.upstream_pool import UpstreamPool

REGISTRATION_TTL_S = 5
"""How long (s) a dead agent stays registered; peers' probes find out sooner."""


class AgentRuntime:
    """One agent's knowledge. Use as an async context manager."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        key: FleetKey,
        pool: UpstreamPool,
        metrics: AgentMetrics,
        rng: Random,
        peer_pool: UpstreamPool | None = None,
        store: ConfigStore | None = None,
    ) -> None:
        """Build all of it; nothing runs yet.

        Args:
            peer_pool: connections to other regions' agents; None takes those of `pool`.
            store: None connects to the etcd of the settings.

        Raises:
            BadEndpointFile, BadGeoDatabase: a file that the settings name cannot be used.
            BadSettings: the state directory cannot be made.
        """
        self._settings = settings
        self._metrics = metrics
        self._rng = rng
        self._clock = time.monotonic
        self.leaving = False
        """This agent is going away."""
        self._seq = 0
        self._registration: Registration | None = None
        self._peer_url = ""
        """Where peers reach this agent, once that is known."""
        _make(settings.state_dir)
        self._epoch = next_epoch(settings.state_dir, time.time())
        self._store = store or EtcdStore(settings.etcd_endpoints, tls=_etcd_tls(settings))
        self.locator = Locator(settings.geoip_file, settings.trusted_proxies, settings.location_header)
        self.endpoints = EndpointSet(
            settings.endpoints_file,
            pool,
            rng,
            zone=settings.zone,
            judge=_judge(settings, rng),
            on_ejected=metrics.ejected,
        )
        self._endpoint_reports = EndpointReports(self.endpoints.every)
        self.registrations = Registrations(
            self.endpoints, settings.registration_token_file, memory=LeaseMemory(settings.state_dir)
        )
        self._loops: list[asyncio.Task[None]] = []
        redis_url = settings.redis_url.get_secret_value() if settings.redis_url else None
        self.shared_load = SharedLoad(settings.region, settings.name, self._epoch, self.endpoints, redis_url, rng)
        self.admission_queue = AdmissionQueue(self.endpoints, self.shared_load, self._clock, metrics.waited)
        self.demand = DemandMeter(self._clock)
        self.request_tally = RequestTally()
        self._directory = AgentDirectory(self._store, settings.state_dir, settings.peer_urls, rng)
        self.peers = PeerProber(
            settings.region,
            settings.name,
            key,
            peer_pool or pool,
            self._directory,
            rng,
            wanted=self._wanted_credits,
            on_credit=self.admission_queue.credit_arrived,
            clock=self._clock,
        )
        self.probe_responder = ProbeResponder(
            settings.region,
            settings.name,
            key,
            self.endpoints,
            self.admission_queue,
            policy=lambda: self.active_config.policy,
            plan=lambda: self.active_config.plan,
            agents_here=lambda: self._directory.names(settings.region),
            clock=self._clock,
        )
        self.quotas = Quotas(lambda: len(self._directory.names(settings.region)))
        self.active_config = ActiveConfig(settings.region, self._store, settings.state_dir, rng, self._use)
        self._state_metrics = StateMetrics(
            metrics,
            self.active_config,
            self.endpoints,
            self.shared_load,
            self.peers,
            self.admission_queue,
            self.request_tally,
        )
        self._reporter = Reporter(self._store, settings.control_plane_urls, pool, key, rng, self._report)

    async def __aenter__(self) -> Self:
        self.endpoints.start()
        self._loops.append(keep_running("registrations", self.registrations.keep_expiring))
        if self.locator.geoip.available:
            self._loops.append(keep_running("geoip", self.locator.geoip.keep_reloading))
        self.shared_load.start()
        self._directory.start()
        self.active_config.start()
        self._reporter.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.withdraw()
        await self._reporter.stop()
        await self.active_config.stop()
        await self._directory.stop()
        await self.peers.stop()
        self.admission_queue.close()
        await self.shared_load.stop()
        await cancel(self._loops)
        await self.endpoints.stop()
        await self._store.close()

    async def announce(self, *, peer_url: str, admin_url: str) -> None:
        """Register, now that it is known where this agent listens."""
        settings = self._settings
        self._peer_url = settings.advertise_peer_url or peer_url
        member = AgentMember(settings.region, settings.name, self._peer_url, admin_url, self._epoch)
        self._registration = Registration(
            self._store,
            keys.agent(settings.region, settings.name),
            encode(member),
            ttl_s=REGISTRATION_TTL_S,
            rng=self._rng,
        )
        self._registration.start()

    async def withdraw(self) -> None:
        """This agent is going away: take the registration back, and tell peers that nothing is ready here.

        Not where its successor listens at the same place already: to peers the place is as ready as before.
        """
        self.leaving = True
        self.probe_responder.leaving = not self._is_succeeded()
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.stop()

    def _is_succeeded(self) -> bool:
        newest = self._directory.member(self._settings.region, self._settings.name)
        return newest is not None and newest.epoch > self._epoch and newest.peer_url == self._peer_url

    def local_view(self, model: str, now: float) -> RegionView:
        """This agent's own region, as the decision sees it."""
        pool = self.endpoints.pool(model)
        return RegionView(
            RegionState.HEALTHY,
            ready=pool.ready > 0,
            expected_wait_s=self.admission_queue.wait_s(model),
        )

    def at_ease(self, model: str) -> bool:
        """Whether one more request for a model would start here at once, with nobody before it."""
        pool = self.endpoints.pool(model)
        return pool.in_flight < pool.slots and not self.admission_queue.is_awaited(model)

    def why_not_ready(self) -> str | None:
        """Why this agent should be sent no clients; None when it may."""
        if self.active_config.policy is None:
            return self.active_config.why_none()
        if not any(pool.ready for pool in self.endpoints.pools.values()):
            return "no endpoint is ready"
        return None

    def has_settled(self) -> bool:
        """Whether it knows enough to serve as well as an agent that has run for long: policy, and every endpoint."""
        return (
            self.active_config.policy is not None
            and self.endpoints.dns.has_asked()
            and not any(endpoint.health.state is EndpointState.NEW for endpoint in self.endpoints.every())
        )

    def show(self, in_flight: Mapping[str, int]) -> None:
        """Set the metrics that show state; called before a scrape."""
        self._state_metrics.show(in_flight)

    def status(self) -> dict[str, Any]:
        """What this agent believes, for people."""
        plan = self.active_config.plan
        return {
            "epoch": self._epoch,
            "ready": self.why_not_ready() is None,
            "not_ready_because": self.why_not_ready(),
            "policy_digest": self.active_config.policy_digest,
            "plan": plan,
            "config_age_s": _finite(self.active_config.age_s()),
            "refused_plan": self.active_config.refused,
            "endpoints_problem": self.endpoints.problem,
            "dns": self.endpoints.dns.status(),
            "registration_problem": self.registrations.problem or None,
            "geoip_problem": self.locator.geoip.problem,
            "shared_view": {"up": self.shared_load.up, "age_s": _finite(self.shared_load.age_s())},
            "pools": self._pool_reports(),
            "waiting": {model: self.admission_queue.waiting_here(model) for model in self.endpoints.pools},
            "endpoints": [
                describe(endpoint, self.registrations.lease_left_s(endpoint.name))
                for endpoint in self.endpoints.every()
            ],
            "demand": self.demand.report(),
            "peers": {
                name: {
                    "state": peer.health.state.value,
                    "rtt_ms": None if peer.rtt_s is None else round(peer.rtt_s * 1000, 1),
                    "agents": [str(address) for address in peer.reached],
                }
                for name, peer in self.peers.regions.items()
            },
        }

    def _use(self, policy: Policy) -> None:
        """A policy has come into force."""
        self._metrics.use_names(policy.models, policy.regions)
        self.request_tally.use(policy.models)
        self.endpoints.use_priors(policy)
        self.peers.use(policy)

    def _wanted_credits(self, model: str) -> int:
        policy = self.active_config.policy
        if policy is None:
            return 0
        pool, spillover = self.endpoints.pool(model), policy.spillover
        return wanted(
            pool.in_flight + self.admission_queue.waiting(model),
            pool.slots,
            spillover.target_utilisation,
            pool.service_s,
            self.demand.per_s(model),
            spillover.credit_ttl_s,
        )

    def _report(self) -> AgentReport:
        self._seq += 1
        self.demand.settle()
        plan = self.active_config.plan
        told = self._endpoint_reports.next()
        return AgentReport(
            region=self._settings.region,
            agent=self._settings.name,
            epoch=self._epoch,
            seq=self._seq,
            sent_at=time.time(),
            pools=self._pool_reports(),
            demand=self.demand.report(),
            peers=self.peers.report(),
            policy_digest=self.active_config.policy_digest,
            plan_epoch=plan.epoch if plan else 0,
            plan_generation=plan.generation if plan else 0,
            refused_plan=self.active_config.refused,
            refused_digest=self.active_config.refused_digest,
            request_counts=self.request_tally.report(),
            objectives=self.request_tally.report_objectives(self._clock()),
            endpoints=told.endpoints,
            endpoints_omitted=told.left_out,
        )

    def _pool_reports(self) -> tuple[PoolReport, ...]:
        return tuple(
            PoolReport(
                model=model,
                endpoints=len(pool.endpoints) + pool.missing,
                ready=pool.ready,
                slots=pool.slots,
                in_flight=pool.in_flight + self.admission_queue.waiting(model),
                service_s=pool.service_s,
                completions=min(MEMORY_COMPLETIONS, sum(one.completions for one in pool.endpoints)),
            )
            for model, pool in self.endpoints.pools.items()
        )


def _finite(seconds: float) -> float | None:
    """JSON has no infinity."""
    return round(seconds, 3) if seconds < float("inf") else None


def _make(state_dir: Path) -> None:
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSettings(
            f"{PREFIX}STATE_DIR: {state_dir}: {error.strerror}; name a directory of this agent's own"
        ) from None


def _etcd_tls(settings: AgentSettings) -> Tls | None:
    if settings.etcd_ca_file is None:
        return None
    return Tls(settings.etcd_ca_file, settings.etcd_certificate_file, settings.etcd_key_file)


def _judge(settings: AgentSettings, rng: Random) -> OutlierDetection:
    rules = EjectionRules(
        server_errors_count=settings.server_errors_eject,
        base_s=settings.ejection_s,
        max_ejected_share=settings.max_ejected_share,
    )
    return OutlierDetection(rules, settings.warm_up_s, rng=rng)
