"""The region's endpoints: from their file, from DNS and by registration; probed, and pooled by loaded model.

A removed endpoint drains and is deleted when its last request ends. An invalid file changes nothing; its problem is
logged once and shown in the agent's status. If two endpoints have the same name or address, the file takes precedence,
then DNS, then the earlier registration.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import structlog

from adapters.file_stamp import Stamp, file_stamp
from penstock.health import orca
from penstock.health.engine_kinds import EngineKind
from penstock.health.engine_signals import InvalidSignals
from penstock.health.outlier_ejection import AttemptOutcome, outcome_of
from penstock.policy.policy import Policy
from penstock.routing.pool_accounting import DEFAULT_SERVICE_S, NO_LOAD, Load
from regional_agent.background_tasks import cancel, keep_running, sleep_until_tick
from regional_agent.endpoints import endpoint_probes, endpoint_signals
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.endpoints.endpoint_dns import DnsResolver, Resolve
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_file import BadEndpointFile, Entry, parse_endpoints, read_endpoint_file
from regional_agent.endpoints.endpoint_pool import EndpointPool
from regional_agent.http.header_rules import Header
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool

LOOK_S: Final = 1.0
"""Interval (s) between two checks of the file for changes."""

TIDY_S: Final = 0.2
"""Interval (s) between two updates of the pools' mean service times and of draining endpoints."""

LOAD_HEADER_EVERY_S: Final = 0.1
"""Minimum interval (s) between two load headers of one endpoint that are read."""

RETRY_AFTER: Final = b"retry-after"

BUSY_STATUSES: Final = (429, 503)
"""The statuses of an engine that is full but healthy."""

log = structlog.get_logger()


class EndpointSet:
    """Every endpoint of the region, by name and by model."""

    def __init__(
        self,
        file: Path,
        connections: UpstreamPool,
        rng: Random,
        *,
        zone: str = "",
        judge: OutlierDetection | None = None,
        on_ejected: Callable[[AttemptOutcome], None] = lambda outcome: None,
        resolve: Resolve | None = None,
    ) -> None:
        """Read the file.

        Args:
            file: see `endpoint_file`.
            connections: the connection pool of the probes.
            rng: adds jitter to the probe interval.
            zone: the agent's zone; empty if zones are not used.
            judge: the outlier detection and warm-up settings.
            on_ejected: called at every ejection, with the outcome that caused it.
            resolve: see `DnsResolver`.

        Raises:
            BadEndpointFile: the file is invalid; an agent does not start with an invalid file.
        """
        self.problem: str | None = None
        """The problem of the current file; None while its content is in force."""
        self._file = file
        self._connections = connections
        self._rng = rng
        self._zone = zone
        self._judge = judge or OutlierDetection(rng=rng)
        self._on_ejected = on_ejected
        self._by_name: dict[str, Endpoint] = {}
        self._retired: list[Endpoint] = []
        self._pools: dict[str, EndpointPool] = {}
        self._entries: tuple[Entry, ...] = ()
        self._registered: dict[str, EndpointSpec] = {}
        self._others: Mapping[str, Load] = {}
        self.dns = DnsResolver(rng, self._apply, resolve)
        """The DNS resolver of the host names in the file."""
        self._prior_s: dict[str, float] = {}
        self._probes: dict[Endpoint, list[asyncio.Task[None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stamp: Stamp | None = _NEVER_READ
        self._entries = self._read_if_changed() or ()
        self._apply()

    def start(self) -> None:
        """Start the probes and the file watcher."""
        self._tasks = [
            keep_running("endpoints file", self._keep_looking),
            keep_running("endpoints tidy", self._keep_tidy),
            keep_running("endpoints dns", self.dns.keep_asking),
        ]
        for endpoint in self._by_name.values():
            self._probe(endpoint)

    async def stop(self) -> None:
        """Stop the probes; endpoint state is kept."""
        await cancel([*self._tasks, *(task for tasks in self._probes.values() for task in tasks)])
        self._tasks, self._probes = [], {}
        self.dns.close()

    def pool(self, model: str) -> EndpointPool:
        """The endpoints that serve a model; an empty pool if there are none."""
        pool = self._pools.get(model)
        return pool if pool is not None else _EMPTY

    @property
    def pools(self) -> Mapping[str, EndpointPool]:
        """Every pool, by model."""
        return self._pools

    def every(self) -> Iterator[Endpoint]:
        """All endpoints, including draining ones."""
        yield from self._by_name.values()
        yield from self._retired

    def failed(self, endpoint: Endpoint) -> None:
        """Record a failed connection."""
        endpoint.broke()

    def answered(self, endpoint: Endpoint, status: int, headers: Sequence[Header]) -> AttemptOutcome | None:
        """Record a response head. Returns its outcome (see `outcome_of`), or None if only the end decides it.

        Args:
            status: the HTTP status of the response.
            headers: the response headers, names in lower case; one may contain the engine's load.
        """
        has_retry_after = False
        for name, value in headers:
            if name == RETRY_AFTER:
                has_retry_after = True
            elif name == orca.HEADER:
                self._heard_load(endpoint, value)
        if status < 400:
            return None
        if status == 404:
            endpoint.missed()
        has_room = endpoint.view.in_flight <= endpoint.view.slots
        outcome = outcome_of(status, has_retry_after=has_retry_after, has_room=has_room, rules=self._judge.rules)
        if status in BUSY_STATUSES and outcome is AttemptOutcome.INCONCLUSIVE:
            endpoint.busy()
        return outcome

    def ejected(self, endpoint: Endpoint, outcome: AttemptOutcome) -> None:
        """Record the ejection of an endpoint, caused by `outcome`."""
        until_s = endpoint.ejection.until - endpoint.ejection.since
        log.warning("endpoint ejected", endpoint=endpoint.name, after=outcome.value, for_s=round(until_s, 1))
        self._on_ejected(outcome)

    def register(self, spec: EndpointSpec) -> str | None:
        """Add or update a registered endpoint. Returns the reason of a rejection, or None.

        The caller limits the number of registered endpoints, and unregisters them.
        """
        for other in self._by_name.values():
            ours = other.name == spec.name and other.spec is self._registered.get(spec.name)
            if not ours and other.name == spec.name:
                return f"name: {spec.name} is another endpoint's, from the endpoints file; choose another"
            if not ours and other.address == spec.address:
                return f"url: {spec.address} is that of {other.name}; an address is one endpoint's"
        if self._registered.get(spec.name) != spec:
            self._registered[spec.name] = spec
            self._apply()
            log.info("endpoint registered", endpoint=spec.name, address=str(spec.address))
        return None

    def unregister(self, name: str) -> None:
        """Drain a registered endpoint: it accepts no new requests."""
        if self._registered.pop(name, None) is not None:
            self._apply()
            log.info("endpoint drains", endpoint=name)

    def set_remote_loads(self, loads: Mapping[str, Load]) -> None:
        """Set the estimated load of other agents on each endpoint, by name."""
        self._others = loads
        for name, endpoint in self._by_name.items():
            others = loads.get(name, NO_LOAD)
            if others != endpoint.remote_load:
                endpoint.set_remote_load(others)

    def use_priors(self, policy: Policy) -> None:
        """Use the policy's expected service time of each model until completions are observed."""
        self._prior_s = {name: model.expected_service_s for name, model in policy.models.items()}
        for model, pool in self._pools.items():
            pool.prior_s = self._prior_s.get(model, pool.prior_s)
        self._recount()

    async def look(self) -> None:
        """Apply the file if it has changed; reject an invalid file as a whole. Reads in a thread."""
        try:
            entries = await asyncio.to_thread(self._read_if_changed)
        except BadEndpointFile as error:
            if str(error) != self.problem:
                log.error("endpoints file refused; the last good one stays in force", problem=str(error))
            self.problem = str(error)
            return
        if entries is not None:
            self.problem = None
            self._entries = entries
            self._apply()
            log.info("endpoints read", file=str(self._file), entries=len(entries))

    def _apply(self) -> None:
        """Apply the current endpoints of all sources."""
        before, self._by_name = self._by_name, {}
        for spec in _first_of_each([*self.dns.expanded(self._entries), *self._registered.values()]):
            known = before.get(spec.name)
            if known is not None and known.address == spec.address:
                if (spec.engine is EngineKind.HTTP) is not (known.spec.engine is EngineKind.HTTP):
                    self._stop_probing(known)
                known.resize(spec)
                self._by_name[spec.name] = before.pop(spec.name)
            else:
                self._by_name[spec.name] = self._returning(spec) or Endpoint(spec, self._judge, self._fill_pools)
                self._by_name[spec.name].set_remote_load(self._others.get(spec.name, NO_LOAD))
        for gone in before.values():
            gone.retire()
            self._retired.append(gone)
            self._stop_probing(gone)
        self._fill_pools()
        if self._tasks:
            for endpoint in self._by_name.values():
                self._probe(endpoint)

    def _returning(self, spec: EndpointSpec) -> Endpoint | None:
        """Return the draining endpoint of the same server, if any, so that its running requests stay counted."""
        for one in self._retired:
            if one.name == spec.name and one.address == spec.address:
                self._retired.remove(one)
                one.resize(spec)
                one.come_back()
                return one
        return None

    def _fill_pools(self) -> None:
        members: dict[str, list[Endpoint]] = {}
        configured: Counter[str] = Counter()
        for endpoint in self._by_name.values():
            configured.update(endpoint.spec.models)
            for model in endpoint.models:
                members.setdefault(model, []).append(endpoint)
        pools = {}
        for model in configured:
            known = self._pools.get(model)
            pools[model] = known if known is not None else self._new_pool(model)
        self._pools = pools
        for endpoint in self._by_name.values():
            endpoint.pools = tuple(pools[model] for model in endpoint.models)
        for model, pool in pools.items():
            loaded = members.get(model, [])
            pool.fill(loaded, configured[model] - len(loaded))
        for endpoint in self._by_name.values():
            endpoint.update_readiness()

    def _new_pool(self, model: str) -> EndpointPool:
        return EndpointPool(self._prior_s.get(model, DEFAULT_SERVICE_S), self._judge.rules, self._zone)

    def _recount(self) -> None:
        for pool in self._pools.values():
            pool.recount()

    def _probe(self, endpoint: Endpoint) -> None:
        if endpoint in self._probes:
            return
        about = (endpoint, self._connections, lambda: len(self._probes), self._rng)
        tasks = [keep_running(f"probe {endpoint.name}", partial(endpoint_probes.watch, *about))]
        if endpoint.spec.engine is not EngineKind.HTTP:
            tasks.append(keep_running(f"signals {endpoint.name}", partial(endpoint_signals.keep_reading, *about)))
        self._probes[endpoint] = tasks

    def _stop_probing(self, endpoint: Endpoint) -> None:
        for task in self._probes.pop(endpoint, ()):
            task.cancel()

    def _heard_load(self, endpoint: Endpoint, header: bytes) -> None:
        """Apply a load header. Every response may contain one; a few per second are enough."""
        now = self._judge.clock()
        if now - endpoint.load_heard_at < LOAD_HEADER_EVERY_S:
            return
        endpoint.load_heard_at = now
        try:
            endpoint.heard_signals(orca.read_orca(header))
        except InvalidSignals as problem:
            endpoint.signals_problem = f"endpoint-load-metrics: {problem}"

    async def _keep_tidy(self) -> None:
        while True:
            await sleep_until_tick(TIDY_S)
            self._retired = [one for one in self._retired if one.local_load.requests > 0]
            for endpoint in self._by_name.values():
                endpoint.tick()
            for pool in self._pools.values():
                pool.update_readiness()
            for pool in self._pools.values():
                pool.update_speeds()

    async def _keep_looking(self) -> None:
        while True:
            await sleep_until_tick(LOOK_S)
            await self.look()

    def _read_if_changed(self) -> tuple[Entry, ...] | None:
        stamp = file_stamp(self._file)
        if stamp == self._stamp:
            return None
        self._stamp = _NEVER_READ
        content = read_endpoint_file(self._file)
        self._stamp = stamp
        return parse_endpoints(content, self._file)


def _first_of_each(specs: list[EndpointSpec]) -> list[EndpointSpec]:
    """Drop every endpoint whose name or address an earlier one has."""
    by_name: dict[str, EndpointSpec] = {}
    addresses: set[Address] = set()
    for spec in specs:
        if spec.name not in by_name and spec.address not in addresses:
            by_name[spec.name] = spec
            addresses.add(spec.address)
    return list(by_name.values())


_EMPTY: Final = EndpointPool()
_NEVER_READ: Final = (-1, -1, -1)
