"""A pool: the endpoints of a region that serve one model, with their numbers summed."""

from __future__ import annotations

from penstock.fleet.expected_wait import pool_service_s
from penstock.health.outlier_ejection import EjectionRules, panicking
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.speed_learning import speeds
from regional_agent.endpoints.endpoint import UNTOLD_SERVICE_S, Endpoint


class Pool:
    """The endpoints of the region that serve one model. Its numbers are kept up to date, so reading costs nothing."""

    __slots__ = (
        "_rules",
        "_zone",
        "endpoints",
        "in_flight",
        "missing",
        "near",
        "out",
        "panics",
        "positions",
        "prior_s",
        "ready",
        "service_s",
        "shares_endpoints",
        "slots",
        "views",
    )

    def __init__(self, prior_s: float = UNTOLD_SERVICE_S, rules: EjectionRules | None = None, zone: str = "") -> None:
        """Empty.

        Args:
            prior_s: its mean service time (s) before any completion.
            zone: the agent's own.
        """
        self._rules = rules or EjectionRules()
        self._zone = zone
        self.out = 0
        """Endpoints that are ejected, or on trial."""
        self.missing = 0
        """Endpoints that should serve the model and have not loaded it."""
        self.panics = False
        """So few are left that ejections are ignored."""
        self.endpoints: list[Endpoint] = []
        self.views: list[EndpointView] = []
        """Of `endpoints`, in the same order."""
        self.positions: dict[str, int] = {}
        """Of `endpoints`, by name."""
        self.near: tuple[int, ...] = ()
        """Positions of those in the agent's zone; empty where that makes no difference."""
        self.shares_endpoints = False
        """Some of them serve other models too."""
        self.prior_s = prior_s
        self.ready = 0
        """Endpoints that may take a request."""
        self.slots = 0
        """Requests that those run at once."""
        self.in_flight = 0
        """Requests on those, all agents of the region counted."""
        self.service_s = prior_s
        """Mean time (s) a request holds its slot."""

    def fill(self, endpoints: list[Endpoint], missing: int = 0) -> None:
        """Replace its members."""
        self.endpoints = endpoints
        self.missing = missing
        self.views = [endpoint.view for endpoint in endpoints]
        self.positions = {endpoint.name: index for index, endpoint in enumerate(endpoints)}
        near = tuple(at for at, one in enumerate(endpoints) if self._zone and one.spec.zone == self._zone)
        self.near = near if len(near) < len(endpoints) else ()
        self.shares_endpoints = any(len(endpoint.models) > 1 for endpoint in endpoints)
        self.judge()
        self.learn()

    def learn(self) -> None:
        """Reckon with what completions have taught of its members since; called a few times a second."""
        for one, speed in zip(self.endpoints, speeds(one.learner for one in self.endpoints), strict=True):
            one.view.speed = speed
            one.view.service_s = one.service_s if one.service_s is not None else self.service_s
            one.view.reckon()

    def judge(self) -> None:
        """Say of each member whether it may take requests, and sum up; whoever changes what is believed does this."""
        left = out = 0
        for one in self.endpoints:
            if one.standing.out:
                out += 1
            elif one.health.ready:
                left += 1
        self.out = out
        self.panics = out > 0 and panicking(left, len(self.endpoints), self._rules)
        changed = {self}
        for one in self.endpoints:
            was_ready = one.view.ready
            one.show()
            if one.view.ready is not was_ready:
                changed.update(one.pools)
        for pool in changed:
            pool.recount()

    def recount(self) -> None:
        """Sum its members up again; whoever changes what is on one of them does this."""
        ready = [one for one in self.endpoints if one.view.ready and not one.view.draining]
        self.ready = len(ready)
        self.slots = sum([one.view.slots for one in ready])
        self.in_flight = sum([one.view.in_flight for one in ready])
        known = [(one.view.slots, one.service_s) for one in ready if one.service_s is not None]
        self.service_s = pool_service_s(known, self.prior_s)
