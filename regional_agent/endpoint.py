"""An endpoint as its agent sees it, and a pool: the endpoints that serve one model, with their numbers summed."""

from __future__ import annotations

import asyncio

from penstock.endpoint_health import EndpointHealth, EndpointState, ProbeOutcome, broke, probed
from penstock.load import mean_with, pool_service_s
from penstock.policy import Model
from penstock.who import EndpointView
from regional_agent.carry.upstream import Address
from regional_agent.endpoint_file import EndpointSpec

UNTOLD_SERVICE_S = Model("").expected_service_s
"""The prior of a model that policy does not name."""


class Endpoint:
    """One model server. Its `view` is what the core chooses by; only this class writes to it."""

    __slots__ = ("completions", "health", "others", "own", "pools", "service_s", "spec", "view", "wake")

    def __init__(self, spec: EndpointSpec) -> None:
        """Not ready before its first good probe."""
        self.spec = spec
        self.view = EndpointView(spec.name, spec.slots, spec.slots + spec.queue)
        self.health = EndpointHealth()
        self.own = 0
        """Requests of this agent on it now."""
        self.others = 0
        """Requests of the region's other agents on it, as far as they are believed."""
        self.service_s: float | None = None
        """Mean time (s) a request holds its slot, lately; None before the first completion."""
        self.completions = 0
        self.pools: tuple[Pool, ...] = ()
        """The pools that it counts in."""
        self.wake = asyncio.Event()
        """Set to have it probed at once."""

    @property
    def name(self) -> str:
        """Its name in the endpoints file."""
        return self.spec.name

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self.spec.address

    @property
    def models(self) -> tuple[str, ...]:
        """What it serves."""
        return self.spec.models

    def take(self) -> None:
        """One more request of this agent is on it."""
        self._add(1)

    def give_back(self) -> None:
        """One of them has ended."""
        self._add(-1)

    def heard_of_others(self, requests: int) -> None:
        """The other agents' requests on it, now believed to be this many; the caller recounts the pools."""
        self.others = requests
        self.view.in_flight = self.own + requests

    def resize(self, spec: EndpointSpec) -> None:
        """Take a changed entry of the file for the same server."""
        self.spec = spec
        self.view.slots = spec.slots
        self.view.limit = spec.slots + spec.queue

    def retire(self) -> None:
        """Take no more requests; those on it may finish. The caller refills the pools."""
        self.view.draining = True
        self.pools = ()

    def probed(self, outcome: ProbeOutcome) -> None:
        """A health probe ended."""
        self._believe(probed(self.health, outcome))

    def broke(self) -> None:
        """A request could not connect: out until a good probe, which comes at once."""
        if self.health.state is not EndpointState.DOWN:
            self._believe(broke(self.health))
            self.wake.set()

    def completed(self, service_s: float) -> None:
        """A request ran to its end and held its slot for `service_s` seconds."""
        prior_s = self.service_s if self.service_s is not None else self._prior_s()
        self.service_s = mean_with(prior_s, self.completions, service_s)
        self.completions += 1

    def _prior_s(self) -> float:
        return self.pools[0].service_s if self.pools else UNTOLD_SERVICE_S

    def _believe(self, health: EndpointHealth) -> None:
        self.health = health
        if health.ready is not self.view.ready:
            self.view.ready = health.ready
            self._recount()

    def _add(self, requests: int) -> None:
        self.own += requests
        view = self.view
        view.in_flight += requests
        if view.ready and not view.draining:
            for pool in self.pools:
                pool.in_flight += requests

    def _recount(self) -> None:
        for pool in self.pools:
            pool.recount()


class Pool:
    """The endpoints of the region that serve one model. Its numbers are kept up to date, so reading costs nothing."""

    __slots__ = ("endpoints", "in_flight", "prior_s", "ready", "service_s", "slots", "views")

    def __init__(self, prior_s: float = UNTOLD_SERVICE_S) -> None:
        """Empty; `prior_s` is its mean service time (s) before any completion."""
        self.endpoints: list[Endpoint] = []
        self.views: list[EndpointView] = []
        """Of `endpoints`, in the same order."""
        self.prior_s = prior_s
        self.ready = 0
        """Endpoints that may take a request."""
        self.slots = 0
        """Requests that those run at once."""
        self.in_flight = 0
        """Requests on those, all agents of the region counted."""
        self.service_s = prior_s
        """Mean time (s) a request holds its slot."""

    def fill(self, endpoints: list[Endpoint]) -> None:
        """Replace its members."""
        self.endpoints = endpoints
        self.views = [endpoint.view for endpoint in endpoints]
        self.recount()

    def recount(self) -> None:
        """Sum its members up again; whoever changes one of them does this."""
        ready = [one for one in self.endpoints if one.view.ready and not one.view.draining]
        self.ready = len(ready)
        self.slots = sum(one.view.slots for one in ready)
        self.in_flight = sum(one.view.in_flight for one in ready)
        known = [(one.view.slots, one.service_s) for one in ready if one.service_s is not None]
        self.service_s = pool_service_s(known, self.prior_s)
