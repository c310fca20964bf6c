"""The region's endpoints: created from their sources, probed, and pooled by loaded model.

A removed endpoint drains and is deleted when its last request ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from math import inf
from random import Random
from typing import Final

import structlog
from msgspec import UNSET

from penstock.health import preemption_notice
from penstock.health.engines import orca
from penstock.health.engines.engine_kinds import EngineKind
from penstock.health.engines.engine_signals import InvalidSignals
from penstock.health.outlier_ejection import AttemptOutcome, outcome_of
from penstock.health.progress import StallReason
from penstock.http.header_rules import Header
from penstock.kv_cache.held_prefixes import HeldPrefixes
from penstock.policy.accelerators import RELATIVE_SPEEDS
from penstock.policy.kinds.models import Model
from penstock.policy.policy import Policy
from penstock.pools.model_uses import ModelUses
from penstock.pools.pool_accounting import NO_LOAD, Load
from penstock.retries.retry_rules import BUSY_STATUSES, UNAUTHORIZED
from regional_agent.background_tasks import cancel, keep_running, sleep_until_tick
from regional_agent.endpoints import endpoint_credentials
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.endpoints.endpoint_credentials import EndpointCredentials
from regional_agent.endpoints.endpoint_failures import EndpointFailures
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_groups import EndpointGroups
from regional_agent.endpoints.endpoint_pool import RegionPools
from regional_agent.endpoints.endpoint_progress import ProgressMonitor
from regional_agent.endpoints.endpoint_sources import EndpointSettings, EndpointSources
from regional_agent.endpoints.probing import endpoint_probes, endpoint_signals, gpu_readings
from regional_agent.endpoints.probing.warm_ups import WarmUps
from regional_agent.endpoints.revision_check import RevisionCheck
from regional_agent.kv_cache.kv_event_follower import KvEventFollower
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import ServerTrust, UpstreamPool

UPDATE_S: Final = 0.2
"""Interval (s) between two updates of the pools' mean service times and of draining endpoints."""

LOAD_HEADER_INTERVAL_S: Final = 0.1
"""Minimum interval (s) between two load headers of one endpoint that are read."""

MAX_LOGGED_ACCELERATORS: Final = 32
"""Number of accelerators of unknown speed that are logged."""

RETRY_AFTER: Final = b"retry-after"

log = structlog.get_logger()


class EndpointSet:
    """Every endpoint of the region, by name and by model."""

    def __init__(
        self,
        settings: EndpointSettings,
        connections: UpstreamPool,
        rng: Random,
        *,
        on_ejected: Callable[[AttemptOutcome], None] = lambda outcome: None,
        on_suspect: Callable[[StallReason], None] = lambda reason: None,
        held_prefixes: HeldPrefixes | None = None,
    ) -> None:
        """Read the file.

        Args:
            connections: the connection pool of the probes.
            rng: adds jitter to the probe interval.
            on_ejected: called at every ejection, with the outcome that caused it.
            on_suspect: called when an endpoint becomes suspect, with the evidence.
            held_prefixes: receives the blocks that endpoints hold by their KV events; None reads no KV events.

        Raises:
            BadEndpointFile: the file is invalid; an agent does not start with an invalid file.
        """
        self._by_name: dict[str, Endpoint] = {}
        self._credentials = EndpointCredentials(settings.upstream_ca)
        self.sources = EndpointSources(settings, rng, self._apply, read_ahead=self._credentials.read_ahead)
        """The sources of the endpoints."""
        self._connections = connections
        self._rng = rng
        self._outlier_detection = settings.outlier_detection or OutlierDetection(rng=rng)
        self.failures = EndpointFailures(self._outlier_detection.clock, on_ejected, self.every)
        """Receives the outcomes of requests."""
        self._progress = ProgressMonitor(
            lambda model: self.pools[model].endpoints,
            self._outlier_detection.rules.suspect_after_s,
            on_suspect,
            lambda model: self.serves_elsewhere(model),
        )
        self.serves_elsewhere: Callable[[str], bool] = lambda model: True
        """Returns whether another region serves a model; replaced where other regions are known."""
        self._draining: list[Endpoint] = []
        self._preempted: dict[str, tuple[Address, float]] = {}
        """Address, and end of the preemption notice (s), of endpoints whose node is about to be removed; by name."""
        self._pools = RegionPools(self._outlier_detection.rules, settings.zone)
        self.pools = self._pools.own
        """The pools of all models, without burst endpoints."""
        self.burst_pools = self._pools.burst
        """The burst endpoints of all models, which are in no other pool."""
        self.versions = RevisionCheck(self._outlier_detection.clock)
        """Judges what the endpoints report that they serve."""
        self.groups = EndpointGroups()
        """The capacity groups of endpoints that serve several models."""
        self._remote_loads: Mapping[str, Load] = {}
        self._drains: Mapping[str, str] = {}
        """The overrides by which operators drain endpoints, by name of the endpoint."""
        self._models: Mapping[str, Model] = {}
        """The models that are loaded on demand, or warmed up."""
        self._known_models: frozenset[str] = frozenset()
        """All models of the policy."""
        self._unknown_accelerators: set[str] = set()
        """Accelerators of unknown speed that were logged."""
        self._warm_ups = WarmUps(connections, self._outlier_detection.clock, self._fill_pools)
        self._held_prefixes = held_prefixes
        self._probes: dict[Endpoint, list[asyncio.Task[None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._apply()

    def start(self) -> None:
        """Start the probes and the file watcher."""
        self._tasks = [
            keep_running("endpoints file", self.sources.keep_reloading_file),
            keep_running("endpoints update", self._keep_updating),
            keep_running("endpoints credentials", self._keep_reloading_credentials),
        ]
        self.sources.discovery.start()
        for endpoint in self._by_name.values():
            self._start_probing(endpoint)

    async def stop(self) -> None:
        """Stop the probes; endpoint state is kept."""
        await cancel([*self._tasks, *(task for tasks in self._probes.values() for task in tasks)])
        self._tasks, self._probes = [], {}
        await self._warm_ups.stop()
        await self.sources.discovery.stop()

    def may_become_ready(self, model: str, within_s: float) -> bool:
        """Whether an endpoint of a model may take requests soon, where none does.

        Args:
            within_s: time (s) in which endpoints start: one that has been without health or model for longer does not.
        """
        now = self._outlier_detection.clock()
        for endpoint in self._by_name.values():
            if model not in endpoint.spec.models or not endpoint.usable or endpoint.drained_because:
                continue
            if endpoint.spec.burst:
                continue
            healthy = endpoint.health.ready
            if healthy and endpoint.reported.warms_up(model):
                return True
            if (healthy and within_s > 0.0 and model in endpoint.models) or now - _unready_since(endpoint) < within_s:
                return True
        return False

    def every(self) -> Iterator[Endpoint]:
        """Yield all endpoints, including draining endpoints."""
        yield from self._by_name.values()
        yield from self._draining

    def answered(self, endpoint: Endpoint, status: int, headers: Sequence[Header]) -> AttemptOutcome | None:
        """Record a response head. Returns its outcome (see `outcome_of`), or None if the end of the response decides.

        Args:
            status: the HTTP status of the response.
            headers: the response headers, names in lower case; one may contain the engine's load.
        """
        has_retry_after = False
        for name, value in headers:
            if name == RETRY_AFTER:
                has_retry_after = True
            elif name == orca.HEADER:
                self._read_load_header(endpoint, value)
            elif name == preemption_notice.HEADER and self._by_name.get(endpoint.name) is endpoint:
                self.preempt(endpoint.name, preemption_notice.notice_s(value))
        if status < 400:
            return None
        if status == 404:
            endpoint.check_models_soon()
        elif status in UNAUTHORIZED and endpoint.spec.credential_file:
            endpoint.reject_credential(f"a request answers {status}")
            endpoint.check_models_soon()
            return AttemptOutcome.CREDENTIAL_REJECTED
        has_room = endpoint.view.in_flight <= endpoint.view.slots
        outcome = outcome_of(
            status, has_retry_after=has_retry_after, has_room=has_room, rules=self._outlier_detection.rules
        )
        if status in BUSY_STATUSES and outcome is AttemptOutcome.INCONCLUSIVE:
            endpoint.mark_full()
        return outcome

    def engine_error(self) -> AttemptOutcome:
        """The outcome of an error that the engine reported in a response with status 200, as of one with status 500."""
        outcome = outcome_of(500, has_retry_after=False, has_room=True, rules=self._outlier_detection.rules)
        return outcome or AttemptOutcome.SERVER_ERROR

    def preempt(self, name: str, for_s: float) -> Endpoint | None:
        """Drain an endpoint at once, because its node is about to be removed. Returns the endpoint; None if unknown.

        Args:
            name: name of the endpoint.
            for_s: time (s) after which the endpoint returns to service if its source still lists it.
        """
        endpoint = self._by_name.get(name)
        if endpoint is None:
            leaving = [each for each in self._draining if each.name == name]
            return leaving[-1] if leaving else None
        log.warning("endpoint preempted; it drains", endpoint=name, for_s=for_s)
        self._preempted[name] = (endpoint.address, self._outlier_detection.clock() + for_s)
        self._apply()
        return endpoint

    def _is_preempted(self, spec: EndpointSpec) -> bool:
        """Whether the server of this entry is about to be removed. A new server of the same name is not affected."""
        return self._preempted.get(spec.name, (None, 0.0))[0] == spec.address

    def _end_preemptions(self) -> None:
        now = self._outlier_detection.clock()
        if any(until <= now for _, until in self._preempted.values()):
            self._preempted = {name: notice for name, notice in self._preempted.items() if notice[1] > now}
            self._apply()

    def set_remote_loads(self, loads: Mapping[str, Load]) -> None:
        """Set the estimated load of other agents on each endpoint, by name."""
        self._remote_loads = loads
        for endpoint in self._by_name.values():
            self._set_remote_load(endpoint)

    def use_drains(self, drains: Mapping[str, str]) -> None:
        """Drain the endpoints that operators drain, and no others; names without an endpoint wait for one.

        Args:
            drains: the override of each endpoint, as text, by name.
        """
        if drains == self._drains:
            return
        self._drains = drains
        for endpoint in self._by_name.values():
            self._use_drain(endpoint)
        self.groups.recount()

    def _use_drain(self, endpoint: Endpoint) -> None:
        because = self._drains.get(endpoint.name, "")
        if because != endpoint.drained_because:
            log.info("endpoint drain changed", endpoint=endpoint.name, because=because or "lifted")
            endpoint.use_drain(because)

    def use_policy(self, policy: Policy) -> None:
        """Use the policy's expected service time of each model until completions are observed, and its revisions."""
        self._pools.use_priors({name: model.expected_service_s for name, model in policy.models.items()})
        self.versions.use_policy(policy)
        for endpoint in self._by_name.values():
            if endpoint.health.ready:
                # A policy that adds a warm-up takes no endpoint away that serves.
                endpoint.reported.warm |= frozenset(endpoint.models)
        special = (each for each in policy.models.values() if each.on_demand is not UNSET or each.warm_up is not UNSET)
        self._models = {model.name: model for model in special}
        before = {endpoint: endpoint.reported.wake_methods for endpoint in self._by_name.values()}
        self._fill_pools()
        unread, self._known_models = policy.models.keys() - self._known_models, frozenset(policy.models)
        for endpoint, known in before.items():
            methods = endpoint.reported.wake_methods
            if methods and methods != known:
                self._read_again(endpoint, methods.keys() & unread)

    def _read_again(self, endpoint: Endpoint, models: Set[str]) -> None:
        """Let a probe read what sleeps and what else is in the memory, which models count otherwise from now on. Those
        new to policy are taken for asleep until then, because no probe has read them before."""
        reported = endpoint.reported
        endpoint.set_loaded_models(frozenset(endpoint.loaded_models) - models, reported.adapters, reported.facts)
        reported.listed_at = -inf
        endpoint.probe_now.set()

    def fall_asleep(self, endpoint: Endpoint, models: frozenset[str]) -> None:
        """Send no new requests for these models to an endpoint, because this agent lets them sleep, nor for those that
        other agents let sleep; empty ends that."""
        endpoint.reported.falls_asleep = models
        self._fill_pools()

    def _apply(self) -> None:
        """Apply the current endpoints of all sources."""
        before, self._by_name = self._by_name, {}
        for spec in self.sources.specs:
            if self._is_preempted(spec):
                continue
            known = before.get(spec.name)
            if known is not None and known.spec.is_server_of(spec):
                reads_signals, read_signals = (each.engine is not EngineKind.HTTP for each in (spec, known.spec))
                if reads_signals is not read_signals or spec.ports != known.spec.ports:
                    self._stop_probing(known)
                known.resize(spec)
                endpoint = before.pop(spec.name)
            else:
                endpoint = self._undrain(spec) or Endpoint(spec, self._outlier_detection, self._fill_pools)
            self._set_remote_load(endpoint)
            self._report_accelerator(endpoint)
            self._by_name[spec.name] = endpoint
            self._use_drain(endpoint)
        for gone in before.values():
            gone.drain()
            self._draining.append(gone)
            self._stop_probing(gone)
        self._credentials.use([spec for spec in self.sources.specs if spec.has_files])
        self._apply_credentials()
        self._fill_pools()
        if self._tasks:
            for endpoint in self._by_name.values():
                self._start_probing(endpoint)

    def _report_accelerator(self, endpoint: Endpoint) -> None:
        """Log an accelerator of unknown speed, once for each name."""
        name = endpoint.spec.accelerator
        logged = self._unknown_accelerators
        if endpoint.accelerator_problem and name not in logged and len(logged) < MAX_LOGGED_ACCELERATORS:
            logged.add(name)
            known = ", ".join(RELATIVE_SPEEDS)
            log.warning(endpoint.accelerator_problem, endpoint=endpoint.name, known=known)

    def _apply_credentials(self) -> None:
        """Apply the entries' options, and the content of the files that they name."""
        trust: dict[Address, ServerTrust] = {}
        for endpoint in self._by_name.values():
            spec = endpoint.spec
            own_trust = self._credentials.trust(spec)
            if own_trust is not None:
                trust[spec.address] = trust[endpoint_signals.metrics_address(spec)] = own_trust
            rewrite = self._credentials.rewrite(spec)
            problem, unusable = self._credentials.problem(spec)
            if rewrite != endpoint.rewrite or problem != endpoint.problem or unusable is endpoint.usable:
                endpoint.set_rewrite(rewrite, problem, usable=not unusable)
        self._connections.use_trust(trust)

    async def _keep_reloading_credentials(self) -> None:
        while True:
            await sleep_until_tick(endpoint_credentials.CHECK_S)
            if await self._credentials.reload_changed():
                self._apply_credentials()

    def _set_remote_load(self, endpoint: Endpoint) -> None:
        load = self._remote_loads.get(endpoint.name, NO_LOAD)
        if load.requests > endpoint.view.limit:
            # Requests of other agents can fill an endpoint, but must not raise the expected wait without bound.
            load = Load(endpoint.view.limit, load.prefill_us, load.decode_us)
        if load != endpoint.remote_load:
            endpoint.set_remote_load(load)

    def _undrain(self, spec: EndpointSpec) -> Endpoint | None:
        """Return the draining endpoint of the same server, if any, so that its running requests stay counted."""
        for endpoint in self._draining:
            if endpoint.name == spec.name and endpoint.spec.is_server_of(spec):
                self._draining.remove(endpoint)
                endpoint.resize(spec)
                endpoint.undrain()
                return endpoint
        return None

    def refused(self, model: str) -> list[Endpoint]:
        """Return the endpoints that have a model, loaded or asleep, in a revision that policy refuses."""
        return [endpoint for endpoint in self._by_name.values() if model in endpoint.reported.refused]

    def _fill_pools(self) -> None:
        for endpoint in self._by_name.values():
            if not endpoint.spec.burst:
                endpoint.reported.use_models(self._models, endpoint.spec.models)
            if endpoint.uses is None and endpoint.spec.memory_gb is not None:
                endpoint.uses = ModelUses()
        self.versions.judge(self._by_name.values())
        self._pools.fill(self._by_name.values())
        self.pools, self.burst_pools = self._pools.own, self._pools.burst
        self.groups.fill([endpoint for endpoint in self._by_name.values() if not endpoint.spec.burst])
        for endpoint in self._by_name.values():
            endpoint.update_readiness()
        self.groups.recount()

    def _start_probing(self, endpoint: Endpoint) -> None:
        if endpoint in self._probes or not endpoint.spec.is_probed:
            return
        args = (endpoint, self._connections, lambda: len(self._probes), self._rng)
        tasks = [keep_running(f"probe {endpoint.name}", partial(endpoint_probes.keep_probing, *args))]
        if endpoint.spec.engine is not EngineKind.HTTP and not endpoint.spec.burst:
            tasks.append(keep_running(f"signals {endpoint.name}", partial(endpoint_signals.keep_reading, *args)))
        if endpoint.spec.gpu_metrics_port is not None:
            tasks.append(keep_running(f"GPUs {endpoint.name}", partial(gpu_readings.keep_reading, *args)))
        self._probes[endpoint] = tasks
        self._follow_kv_events(endpoint)

    def _stop_probing(self, endpoint: Endpoint) -> None:
        for task in self._probes.pop(endpoint, ()):
            task.cancel()
        endpoint.kv_events = endpoint.reported.gpus = None

    def _follow_kv_events(self, endpoint: Endpoint) -> None:
        port, held = endpoint.spec.kv_events_port, self._held_prefixes
        if port is None or held is None:
            return
        follower = KvEventFollower(endpoint.name, endpoint.address.host, port, held, self._rng)
        endpoint.kv_events = follower
        self._probes[endpoint].append(keep_running(f"KV events {endpoint.name}", follower.keep_following))

    def _read_load_header(self, endpoint: Endpoint, header: bytes) -> None:
        """Apply a load header, at most one per LOAD_HEADER_INTERVAL_S, because every response may contain one."""
        now = self._outlier_detection.clock()
        if now - endpoint.load_header_read_at < LOAD_HEADER_INTERVAL_S:
            return
        endpoint.load_header_read_at = now
        try:
            endpoint.update_signals(orca.read_orca(header))
        except InvalidSignals as problem:
            endpoint.signals_problem = f"endpoint-load-metrics: {problem}"

    async def _keep_updating(self) -> None:
        while True:
            await sleep_until_tick(UPDATE_S)
            self._draining = [endpoint for endpoint in self._draining if endpoint.local_load.requests > 0]
            self._end_preemptions()
            for endpoint in self._by_name.values():
                endpoint.tick()
            self._warm_ups.check(self._by_name.values())
            if self.versions.is_due():
                self._fill_pools()
            now = self._outlier_detection.clock()
            self.failures.check(now)
            self._progress.check(self._by_name.values(), now)
            for pool in self._pools.every():
                pool.update_readiness()
            for pool in self._pools.every():
                pool.update_speeds()
            self.groups.recount()


def _unready_since(endpoint: Endpoint) -> float:
    """Since when an endpoint has been without health, or has not listed its models (s)."""
    return max(endpoint.out_since, endpoint.warm_since) if endpoint.health.ready else endpoint.out_since
