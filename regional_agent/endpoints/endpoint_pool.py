"""A pool: the endpoints of a region that serve one model, and their totals."""

from __future__ import annotations

from penstock.health.engine_kinds import ENGINES
from penstock.health.outlier_ejection import EjectionRules, panicking
from penstock.pools.context_lengths import ContextLengths
from penstock.pools.pool_accounting import DEFAULT_SERVICE_S, PoolAccount, PoolTotals
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.upstream.address import Address


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
        """The context lengths that engines report; None if none does."""
        self.missing = 0
        """Number of endpoints that are configured for the model and have not loaded the model."""
        self.renaming: frozenset[str] = frozenset()
        """Names of the endpoints whose engine has another name for the model."""

    @property
    def largest_context(self) -> int:
        """The largest context length (tokens) of its endpoints; 0 if it is unknown."""
        return 0 if self.contexts is None else self.contexts.largest

    def fill(
        self,
        endpoints: list[Endpoint],
        missing: int = 0,
        renaming: frozenset[str] = frozenset(),
        model: str = "",
    ) -> None:
        """Replace the members of the pool.

        Args:
            missing: number of endpoints that are configured for the model and have not loaded the model.
            renaming: names of the endpoints whose engine has another name for the model.
            model: name of the model.
        """
        near = frozenset(
            index for index, endpoint in enumerate(endpoints) if self._zone and endpoint.spec.zone == self._zone
        )
        self.set_endpoints(endpoints, near if len(near) < len(endpoints) else frozenset())
        self.missing = missing
        self.renaming = renaming
        lengths = [(endpoint.name, endpoint.reported.context_tokens(model)) for endpoint in endpoints]
        self.contexts = ContextLengths(lengths) if any(tokens for _, tokens in lengths) else None
        self.shares_endpoints = any(len(endpoint.models) > 1 for endpoint in endpoints)
        self.update_readiness()
        self.update_speeds()

    def without_adapter(self, name: str) -> frozenset[str]:
        """Return the names of the endpoints that have no adapter of this name."""
        return frozenset(endpoint.name for endpoint in self.endpoints if not endpoint.has_adapter(name))

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
