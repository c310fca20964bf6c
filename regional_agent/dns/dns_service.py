"""Answers DNS queries through a PowerDNS beside this agent: its socket, the plans of all origins, and region states."""

from __future__ import annotations

import time
from collections.abc import Hashable
from random import Random

from adapters.configuration.settings_loader import BadSettings
from adapters.store.config_store import ConfigStore
from penstock.dns.name_answer import EntryState, NameServerView, Question, answer_name, closed_entries, is_absent
from penstock.health.region_health import RegionState
from penstock.policy.policy import Policy
from regional_agent.config.active_config import ActiveConfig
from regional_agent.config.settings import PREFIX, AgentSettings
from regional_agent.dns.answer_cache import AnswerCache
from regional_agent.dns.backend_socket import BackendSocket
from regional_agent.dns.fleet_plans import FleetPlans
from regional_agent.dns.name_resolver import NameResolver
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.peers.peer_prober import PeerProber
from regional_agent.readiness import Readiness
from regional_agent.requests.client_location import Locator
from regional_agent.telemetry.agent_metrics import AgentMetrics

VIEW_AGE_S = 0.02
"""Time (s) for which one view of the fleet answers queries; a probe lasts longer."""


class EntryStates:
    """The state of every region as an entry of clients, in the view of this agent."""

    def __init__(self, region: str, readiness: Readiness, endpoints: EndpointSet, peers: PeerProber) -> None:
        self._region = region
        self._readiness = readiness
        self._endpoints = endpoints
        self._peers = peers

    def read(self) -> dict[str, EntryState]:
        """Return the states by region."""
        return {**self._peers.entry_states(), self._region: self._here()}

    def accepts_clients(self) -> bool:
        """Whether this agent should receive clients."""
        return not self._readiness.shutting_down and self._readiness.not_ready_reason() is None

    def _here(self) -> EntryState:
        if not self.accepts_clients():
            return EntryState(RegionState.FAILED)
        pools = self._endpoints.pools
        ready = frozenset(model for model, pool in pools.items() if pool.ready > 0)
        asleep, burst = frozenset(pools) - ready, frozenset(self._endpoints.burst_pools).difference(pools)
        return EntryState(RegionState.HEALTHY, ready, accepts_clients=not pools, asleep=asleep, burst=burst)


class DnsService:
    """The answers of one agent; `start` opens the socket."""

    def __init__(
        self,
        settings: AgentSettings,
        config: ActiveConfig,
        store: ConfigStore,
        entries: EntryStates,
        locator: Locator,
        metrics: AgentMetrics,
    ) -> None:
        """Create a service without a socket if the settings name none."""
        self._path = settings.dns_socket
        self._config = config
        self._entries = entries
        self._plans = FleetPlans(store, settings.state_dir, Random())
        self._resolver = NameResolver(config, locator, self._view, Random(), metrics.dns.answered)
        self._socket: BackendSocket | None = None
        self._cached: tuple[float, Policy, NameServerView] | None = None
        self._cache: AnswerCache | None = None
        if settings.dns_control_socket is not None and self._path is not None:
            self._cache = AnswerCache(settings.dns_control_socket, self._basis)
        if self._path is not None:
            metrics.dns.live_regions = self._live_regions

    async def start(self) -> None:
        """Open the socket, and follow the plans of all origins; raises BadSettings."""
        if self._path is None:
            return
        self._socket = BackendSocket(self._path, self._resolver.answer)
        try:
            await self._socket.listen()
        except OSError as error:
            self._socket = None
            raise BadSettings(
                f"{PREFIX}DNS_SOCKET: cannot listen at {self._path}: {error.strerror};"
                " name a file in a folder that the agent may write to"
            ) from None
        self._plans.start()
        if self._cache is not None:
            self._cache.start()

    async def stop(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            if self._cache is not None:
                await self._cache.stop()
            await self._socket.close()
            await self._plans.stop()
            self._socket = None

    def _view(self, policy: Policy) -> NameServerView:
        now = time.monotonic()
        if self._cached is None or self._cached[1] is not policy or now - self._cached[0] > VIEW_AGE_S:
            self._cached = (now, policy, NameServerView(self._entries.read(), self._plans.plans))
        return self._cached[2]

    def _basis(self) -> Hashable:
        """Return what decides which regions are live, without what changes in small steps, such as weights."""
        # PowerDNS would cache answers of an older view again after its cache was emptied.
        self._cached = None
        states = self._entries.read().items()
        live = frozenset(
            (name, is_absent(each.state), each.ready, each.accepts_clients, each.asleep, each.burst)
            for name, each in states
        )
        return self._config.policy_digest, live, closed_entries(self._plans.plans)

    def _live_regions(self) -> list[tuple[tuple[str, ...], float]]:
        """Return the number of live regions of each name, for queries without a client subnet."""
        policy = self._config.policy
        if policy is None:
            return []
        view, now = self._view(policy), Question()
        names = (policy.dns_names or {}).values()
        return [((name.name,), float(answer_name(policy, name, now, view).live)) for name in names]
