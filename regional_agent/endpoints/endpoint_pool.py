"""The pools of a region: the endpoints that serve one model, and their totals."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.health.engines.engine_kinds import ENGINES
from penstock.health.outlier_ejection import EjectionRules, panicking
from penstock.pools.context_lengths import ContextLengths
from penstock.pools.pool_accounting import DEFAULT_SERVICE_S, PoolAccount, PoolTotals
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.upstream.address import Address

LACKING_S: Final = 30.0
"""Time (s) for which an endpoint receives no request of a route that it lacks."""


class EndpointSubset:
    """The endpoints of which a proxy in front of the agent can use one for a request."""

    def __init__(self, addresses: frozenset[str] | None, *, over_grpc: bool) -> None:
        """Permit the endpoints at `addresses` (`ip:port`; None: all), if `over_grpc` those with a port for gRPC."""
        self._addresses = addresses
        self.over_grpc = over_grpc

    def address_of(self, endpoint: Endpoint) -> Address | None:
        """Return the address of an endpoint for the request; None if the endpoint is not in the subset."""
        address: Address = endpoint.address
        if self.over_grpc:
            port = endpoint.spec.grpc_port
            if port is None:
                return None
            address = address._replace(port=port)
        # A gateway may list an endpoint by its port for HTTP, too.
        addresses = self._addresses
        if addresses is None or str(address) in addresses or str(endpoint.address) in addresses:
            return address
        return None


class EndpointPool(PoolAccount[Endpoint]):
    """The endpoints of the region that serve one model, with their health and their zones."""

    def __init__(self, prior_s: float = DEFAULT_SERVICE_S, rules: EjectionRules | None = None, zone: str = "") -> None:
        """Create an empty pool.

        Args:
            prior_s: mean service time (s) before any completion.
            rules: outlier detection; None uses the defaults.
            zone: the agent's zone; empty prefers no zone.
        """
        super().__init__(prior_s, rules)
        self._zone = zone
        self.contexts: ContextLengths | None = None
        """The context lengths that engines report, also of endpoints that sleep; None if none does."""
        self.largest_context = 0
        """The largest of them (tokens); 0 if it is unknown."""
        self.missing = 0
        """Number of endpoints that are configured for the model and have not loaded the model."""
        self.renaming: frozenset[str] = frozenset()
        """Names of the endpoints whose engine has another name for the model."""
        self.lacking: dict[tuple[str, str], float] = {}
        """Until when (s) an endpoint receives no request of a route that it lacks, by the names of route and
        endpoint."""

    def fill(
        self,
        endpoints: list[Endpoint],
        missing: Sequence[Endpoint] = (),
        renaming: frozenset[str] = frozenset(),
        model: str = "",
    ) -> None:
        """Replace the members of the pool.

        Args:
            missing: endpoints that are configured for the model and have not loaded the model.
            renaming: names of the endpoints whose engine has another name for the model.
            model: name of the model.
        """
        near = frozenset(
            index for index, endpoint in enumerate(endpoints) if self._zone and endpoint.spec.zone == self._zone
        )
        self.set_endpoints(endpoints, near if len(near) < len(endpoints) else frozenset())
        self.missing = len(missing)
        self.renaming = renaming
        # A request that fits into an endpoint that can wake is not too long.
        wakes = [each for each in missing if model in each.reported.wake_methods.keys() - each.reported.refused]
        lasting = (*endpoints, *wakes)
        lengths = [(endpoint.name, endpoint.reported.context_tokens(model)) for endpoint in lasting]
        self.contexts = ContextLengths(lengths) if any(tokens for _, tokens in lengths) else None
        self.largest_context = 0 if self.contexts is None else self.contexts.largest
        self.shares_endpoints = any(len(endpoint.models) > 1 for endpoint in endpoints)
        self.update_readiness()
        self.update_speeds()

    def without_adapter(self, name: str) -> frozenset[str]:
        """Return the names of the endpoints that have no adapter of this name, or have ejected it."""
        return frozenset(
            endpoint.name
            for endpoint in self.endpoints
            if not endpoint.has_adapter(name) or endpoint.adapter_ejections.is_out(name, endpoint.now())
        )

    def note_lacking(self, route: str, endpoint: str, now: float) -> None:
        """Record at `now` (s) that an endpoint lacks the path of a route, which another one has served."""
        self.lacking = {key: until for key, until in self.lacking.items() if until > now}
        self.lacking[route, endpoint] = now + LACKING_S

    def without_route(self, route: str, now: float) -> frozenset[str]:
        """Return the names of the endpoints that lack a route, as far as is known at `now` (s)."""
        return frozenset(name for (of, name), until in self.lacking.items() if of == route and until > now)

    def outside(self, subset: EndpointSubset) -> frozenset[str]:
        """Return the names of the endpoints that are not in `subset`."""
        return frozenset(endpoint.name for endpoint in self.endpoints if subset.address_of(endpoint) is None)

    def unable_to_extend(self) -> frozenset[str]:
        """Return the names of the endpoints whose kind of engine cannot extend a text, or is unknown."""
        return frozenset(endpoint.name for endpoint in self.endpoints if not ENGINES[endpoint.kind].extends_text)

    @property
    def extends_text(self) -> bool:
        """Whether a ready endpoint can extend a text."""
        return any(endpoint.view.ready and ENGINES[endpoint.kind].extends_text for endpoint in self.endpoints)

    def beside(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names of the endpoints at the hosts of `names`, these included."""
        hosts = {endpoint.address.host for endpoint in self.endpoints if endpoint.name in names}
        return frozenset(endpoint.name for endpoint in self.endpoints if endpoint.address.host in hosts)

    def update_readiness(self) -> None:
        """Update which endpoints may receive requests, and the totals of this and all affected pools."""
        available = ejected = stalled = 0
        for endpoint in self.endpoints:
            if endpoint.ejection.is_ejected:
                ejected += 1
                stalled += endpoint.ejection.is_stalled
            elif endpoint.health.ready:
                available += 1
        self.ejected = ejected
        self.panics = ejected > stalled and panicking(available, len(self.endpoints), self.rules)
        changed: set[PoolTotals] = {self}
        for endpoint in self.endpoints:
            was_ready = endpoint.view.ready
            endpoint.update_readiness()
            if endpoint.view.ready is not was_ready:
                changed.update(endpoint.pools)
        for pool in changed:
            pool.recount()


class Pools(dict[str, EndpointPool]):
    """Pools by model; an empty pool for a model that no endpoint is configured for."""

    def __missing__(self, model: str) -> EndpointPool:
        return _EMPTY


class RegionPools:
    """The pools of a region, by model: of its own endpoints, and apart from them of its burst endpoints."""

    def __init__(self, rules: EjectionRules, zone: str) -> None:
        """Create no pool.

        Args:
            rules: outlier detection. All burst endpoints may be ejected, since requests wait for the others then.
            zone: the agent's zone.
        """
        self.own = Pools()
        self.burst = Pools()
        """They count in no number of the other pools."""
        self._rules = rules
        self._burst_rules = replace(rules, max_ejected_share=1.0, panic_share=0.0)
        self._zone = zone
        self._prior_s: Mapping[str, float] = {}

    def every(self) -> Iterator[EndpointPool]:
        """Yield all pools."""
        yield from self.own.values()
        yield from self.burst.values()

    def use_priors(self, prior_s: Mapping[str, float]) -> None:
        """Use the service time (s) that policy expects of each model until completions are observed."""
        self._prior_s = prior_s
        for pools in (self.own, self.burst):
            for model, pool in pools.items():
                pool.prior_s = prior_s.get(model, pool.prior_s)

    def fill(self, endpoints: Collection[Endpoint]) -> None:
        """Replace the members of all pools; each model that an endpoint is configured for has a pool."""
        self.own = self._filled([each for each in endpoints if not each.spec.burst], self.own, self._rules)
        self.burst = self._filled([each for each in endpoints if each.spec.burst], self.burst, self._burst_rules)

    def _filled(
        self, endpoints: Collection[Endpoint], before: Mapping[str, EndpointPool], rules: EjectionRules
    ) -> Pools:
        # A dict: reports and status pages list pools in the order of their entries.
        configured = dict.fromkeys(model for endpoint in endpoints for model in endpoint.spec.models)
        pools = Pools({model: before.get(model) or self._new_pool(model, rules) for model in configured})
        loaded: dict[str, list[Endpoint]] = {model: [] for model in configured}
        missing: dict[str, list[Endpoint]] = {model: [] for model in configured}
        for endpoint in endpoints:
            models = endpoint.models
            endpoint.pools = tuple(pools[model] for model in models)
            for model in endpoint.spec.models:
                (loaded if model in models else missing)[model].append(endpoint)
        for model, pool in pools.items():
            renaming = frozenset(endpoint.name for endpoint in loaded[model] if endpoint.spec.renames(model))
            pool.fill(loaded[model], missing[model], renaming, model)
        return pools

    def _new_pool(self, model: str, rules: EjectionRules) -> EndpointPool:
        return EndpointPool(self._prior_s.get(model, DEFAULT_SERVICE_S), rules, self._zone)


_EMPTY: Final = EndpointPool()
