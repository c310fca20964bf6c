"""The region's endpoints: from their file, from DNS, and registered; probed, and pooled by the models they have loaded.

What is removed takes no more requests and vanishes when those it has are done. A file that cannot be used changes
nothing; what is wrong with it is logged once and shown in the agent's status. Of two that claim one name or address the
file's is taken, then that from DNS, then the one registered first.
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
from penstock.health.engine_signals import BadSignals
from penstock.health.outlier_ejection import Outcome, outcome_of
from penstock.policy.policy import Policy
from penstock.routing.pool_accounting import DEFAULT_SERVICE_S, NO_LOAD, Load
from regional_agent.background_tasks import beat, cancel, keep_running
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
"""Time (s) between two looks at whether the file has changed."""

TIDY_S: Final = 0.2
"""Time (s) between two refreshes of the pools' mean service times, and of what is retired."""

LOAD_HEADER_EVERY_S: Final = 0.1
"""Least time (s) between two load headers of one endpoint that are read."""

RETRY_AFTER: Final = b"retry-after"

BUSY_STATUSES: Final = (429, 503)
"""What an engine answers that has no room, as far as it is not broken."""

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
        on_ejected: Callable[[Outcome], None] = lambda outcome: None,
        resolve: Resolve | None = None,
    ) -> None:
        """Read the file.

        Args:
            file: see `endpoint_file`.
            connections: what probes go over.
            rng: spreads probes over time.
            zone: the one that the agent stands in; empty where that does not matter.
            judge: when endpoints are ejected, and how they warm up.
            on_ejected: hears of every ejection, with the outcome that made it.
            resolve: see `DnsResolver`.

        Raises:
            BadEndpointFile: it cannot be used; an agent does not start without endpoints that it understands.
        """
        self.problem: str | None = None
        """What is wrong with the file as it is now; None while what it says is in force."""
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
        """What is known of names in the file."""
        self._prior_s: dict[str, float] = {}
        self._probes: dict[Endpoint, list[asyncio.Task[None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stamp: Stamp | None = _NEVER_READ
        self._entries = self._read_if_changed() or ()
        self._apply()

    def start(self) -> None:
        """Begin to probe, and to look after the file."""
        self._tasks = [
            keep_running("endpoints file", self._keep_looking),
            keep_running("endpoints tidy", self._keep_tidy),
            keep_running("endpoints dns", self.dns.keep_asking),
        ]
        for endpoint in self._by_name.values():
            self._probe(endpoint)

    async def stop(self) -> None:
        """Stop probing; what is known stays as it is."""
        await cancel([*self._tasks, *(task for tasks in self._probes.values() for task in tasks)])
        self._tasks, self._probes = [], {}
        self.dns.close()

    def pool(self, model: str) -> EndpointPool:
        """The endpoints that serve a model; an empty pool where none does."""
        pool = self._pools.get(model)
        return pool if pool is not None else _EMPTY

    @property
    def pools(self) -> Mapping[str, EndpointPool]:
        """Every pool, by model."""
        return self._pools

    def every(self) -> Iterator[Endpoint]:
        """Every endpoint, those that only finish what they have included."""
        yield from self._by_name.values()
        yield from self._retired

    def failed(self, endpoint: Endpoint) -> None:
        """A request could not connect to it."""
        endpoint.broke()

    def answered(self, endpoint: Endpoint, status: int, headers: Sequence[Header]) -> Outcome | None:
        """What the head of an answer says of it (see `outcome_of`); None where the end must be waited for.

        Args:
            status: the answer's HTTP status.
            headers: of the answer, names in lower case; one may say how full the engine is.
        """
        says_when = False
        for name, value in headers:
            if name == RETRY_AFTER:
                says_when = True
            elif name == orca.HEADER:
                self._heard_load(endpoint, value)
        if status < 400:
            return None
        if status == 404:
            endpoint.missed()
        has_room = endpoint.view.in_flight <= endpoint.view.slots
        outcome = outcome_of(status, says_when=says_when, has_room=has_room, rules=self._judge.rules)
        if status in BUSY_STATUSES and outcome is Outcome.INCONCLUSIVE:
            endpoint.busy()
        return outcome

    def ejected(self, endpoint: Endpoint, outcome: Outcome) -> None:
        """A request that ended so was one too many."""
        until_s = endpoint.standing.until - endpoint.standing.since
        log.warning("endpoint ejected", endpoint=endpoint.name, after=outcome.value, for_s=round(until_s, 1))
        self._on_ejected(outcome)

    def register(self, spec: EndpointSpec) -> str | None:
        """Take an endpoint in that registered itself, or what it now says of itself; why not, or None.

        The caller bounds how many there are, and takes them out again.
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
        """It takes no more requests; those on it may finish."""
        if self._registered.pop(name, None) is not None:
            self._apply()
            log.info("endpoint drains", endpoint=name)

    def set_remote_loads(self, loads: Mapping[str, Load]) -> None:
        """Take in what other agents are believed to have on each endpoint, by name."""
        self._others = loads
        for name, endpoint in self._by_name.items():
            others = loads.get(name, NO_LOAD)
            if others != endpoint.remote_load:
                endpoint.set_remote_load(others)

    def use_priors(self, policy: Policy) -> None:
        """Take each model's expected service time from a newly accepted policy, until completions have been seen."""
        self._prior_s = {name: model.expected_service_s for name, model in policy.models.items()}
        for model, pool in self._pools.items():
            pool.prior_s = self._prior_s.get(model, pool.prior_s)
        self._recount()

    async def look(self) -> None:
        """Take the file's new content if it has changed, or refuse all of it and say why. Reads in a thread."""
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
        """Make what is served that which every source says now."""
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
        """The same server, where it still finishes what it had when it was taken out: that counts."""
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
        """Every answer may carry one; a few a second say as much as all of them."""
        now = self._judge.clock()
        if now - endpoint.load_heard_at < LOAD_HEADER_EVERY_S:
            return
        endpoint.load_heard_at = now
        try:
            endpoint.heard_signals(orca.read_orca(header))
        except BadSignals as problem:
            endpoint.signals_problem = f"endpoint-load-metrics: {problem}"

    async def _keep_tidy(self) -> None:
        while True:
            await beat(TIDY_S)
            self._retired = [one for one in self._retired if one.local_load.requests > 0]
            for endpoint in self._by_name.values():
                endpoint.tick()
            for pool in self._pools.values():
                pool.update_readiness()
            for pool in self._pools.values():
                pool.update_speeds()

    async def _keep_looking(self) -> None:
        while True:
            await beat(LOOK_S)
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
    """Of those that claim one name or one address, the first."""
    by_name: dict[str, EndpointSpec] = {}
    addresses: set[Address] = set()
    for spec in specs:
        if spec.name not in by_name and spec.address not in addresses:
            by_name[spec.name] = spec
            addresses.add(spec.address)
    return list(by_name.values())


_EMPTY: Final = EndpointPool()
_NEVER_READ: Final = (-1, -1, -1)
