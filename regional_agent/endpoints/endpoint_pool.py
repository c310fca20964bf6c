"""A pool: the endpoints of a region that serve one model, and the sums of their numbers."""

from __future__ import annotations

from penstock.fleet.expected_wait import pool_service_s
from penstock.health.outlier_ejection import EjectionRules, panicking
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.speed_learning import speeds
from regional_agent.endpoints.endpoint import DEFAULT_SERVICE_S, Endpoint
from regional_agent.endpoints.pool_totals import PoolTotals


class EndpointPool(PoolTotals):
    """The endpoints of the region that serve one model. The sums are updated on every change, so reads cost nothing."""

    __slots__ = (
        "_zone",
        "endpoints",
        "missing",
        "near",
        "positions",
        "prior_s",
        "ready",
        "shares_endpoints",
        "slots",
        "views",
    )

    def __init__(self, prior_s: float = DEFAULT_SERVICE_S, rules: EjectionRules | None = None, zone: str = "") -> None:
        """Create an empty pool.

        Args:
            prior_s: mean service time (s) before any completion.
            rules: outlier detection; None takes the defaults.
            zone: the agent's zone; empty prefers no zone.
        """
        super().__init__(prior_s, rules or EjectionRules())
        self._zone = zone
        self.missing = 0
        """Endpoints that are configured for the model and have not loaded it."""
        self.endpoints: list[Endpoint] = []
        self.views: list[EndpointView] = []
        """The views of `endpoints`, in the same order."""
        self.positions: dict[str, int] = {}
        """Index in `endpoints` by endpoint name."""
        self.near: tuple[int, ...] = ()
        """Indexes of the endpoints in the agent's zone; empty if all or none are."""
        self.shares_endpoints = False
        """Whether some endpoints serve other models too."""
        self.prior_s = prior_s
        self.ready = 0
        """Endpoints that may take a request."""
        self.slots = 0
        """Requests that the ready endpoints run at once."""

    def fill(self, endpoints: list[Endpoint], missing: int = 0) -> None:
        """Replace the members of the pool.

        Args:
            missing: endpoints that are configured for the model and have not loaded it.
        """
        self.endpoints = endpoints
        self.size = len(endpoints)
        self.missing = missing
        self.views = [endpoint.view for endpoint in endpoints]
        self.positions = {endpoint.name: index for index, endpoint in enumerate(endpoints)}
        near = tuple(
            index for index, endpoint in enumerate(endpoints) if self._zone and endpoint.spec.zone == self._zone
        )
        self.near = near if len(near) < len(endpoints) else ()
        self.shares_endpoints = any(len(endpoint.models) > 1 for endpoint in endpoints)
        self.update_readiness()
        self.update_speeds()

    def update_speeds(self) -> None:
        """Apply the speeds and service times learned from completions. Called a few times a second."""
        learned = speeds(endpoint.learner for endpoint in self.endpoints)
        for endpoint, speed in zip(self.endpoints, learned, strict=True):
            endpoint.view.speed = speed
            endpoint.view.service_s = endpoint.service_s if endpoint.service_s is not None else self.service_s
            endpoint.view.update_score()

    def update_readiness(self) -> None:
        """Decide which endpoints may take requests, and sum up this pool and every pool that shares one of them."""
        left = ejected = 0
        for endpoint in self.endpoints:
            if endpoint.standing.out:
                ejected += 1
            elif endpoint.health.ready:
                left += 1
        self.ejected = ejected
        self.panics = ejected > 0 and panicking(left, len(self.endpoints), self.rules)
        changed: set[PoolTotals] = {self}
        for endpoint in self.endpoints:
            was_ready = endpoint.view.ready
            endpoint.update_readiness()
            if endpoint.view.ready is not was_ready:
                changed.update(endpoint.pools)
        for pool in changed:
            pool.recount()

    def recount(self) -> None:
        """Sum the numbers of the endpoints again. Called after a change on one of them."""
        ready = [endpoint for endpoint in self.endpoints if endpoint.view.ready and not endpoint.view.draining]
        self.ready = len(ready)
        self.slots = sum([endpoint.view.slots for endpoint in ready])
        self.in_flight = sum([endpoint.view.in_flight for endpoint in ready])
        known = [(endpoint.view.slots, endpoint.service_s) for endpoint in ready if endpoint.service_s is not None]
        self.service_s = pool_service_s(known, self.prior_s)
