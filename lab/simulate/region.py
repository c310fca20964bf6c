"""A region on the virtual clock: several agents in front of the same engines, with one way to choose among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Generic, Protocol

import msgspec

from lab.simulate.baselines.balancer import Probe
from lab.simulate.clock import VirtualClock
from lab.simulate.fleets import EngineFleet, FleetFactory, LatencyEstimate, Request
from lab.simulate.shared_view import Published, SharedView
from penstock.fleet.shared_counts import MIN_INTERVAL_S


class Served(msgspec.Struct, Generic[Request]):
    """One request's result; times are seconds since it arrived."""

    request: Request
    engine: int = -1
    first_s: float | None = None
    end_s: float | None = None


class Agent(Protocol[Request]):
    """One agent: receives requests, and sends each to an engine with `Region.send`."""

    def arrive(self, served: Served[Request]) -> None:
        """Accept a request of a client."""

    def notified(self, delay_s: float) -> None:
        """Read what another agent has published after this time (s), if requests wait here."""


class Region(Generic[Request]):
    """The engines, the agents, and all requests of a run."""

    def __init__(
        self,
        fleet: FleetFactory[Request],
        agents: int,
        seed: int,
        view_age_s: float | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        """Create an idle region without agents; the same `seed` gives the same run.

        Args:
            agents: number of agents.
            view_age_s: age of what agents see of each other; None for the exchange of the product.
            clock: shared by several regions; None for a clock of its own.
        """
        self.clock = clock or VirtualClock()
        self.fleet: EngineFleet[Request] = fleet(self.clock)
        self.shared = SharedView(agents, view_age_s)
        self.served: list[Served[Request]] = []
        self.seed = seed
        self.in_flight = [0] * len(self.fleet.kinds)
        """Requests on each engine, of all agents."""
        self._latencies = [LatencyEstimate() for _ in self.fleet.kinds]
        self.agents = agents
        self._agents: Sequence[Agent[Request]] = ()
        self._rng = Random(seed)
        self._unanswered = 0
        self._stopped = False

    def set_agents(self, agents: Sequence[Agent[Request]]) -> None:
        """Set the agents that `arrive` chooses from."""
        self._agents = agents

    def run(self, requests: Sequence[Request], agents: Sequence[Agent[Request]]) -> None:
        """Send each request to a random agent, and run until the last one is answered."""
        self.set_agents(agents)
        for request in requests:
            self.clock.at(request.at_s, partial(self._arrive, self._rng.choice(agents), Served(request)))
        self._unanswered = len(requests)
        while self._unanswered:
            self.clock.step()

    def arrive(self, request: Request) -> Served[Request]:
        """Send a request to a random agent; the caller steps the clock."""
        served = Served(request)
        self._unanswered += 1
        self._arrive(self._rng.choice(self._agents), served)
        return served

    def stop(self) -> None:
        """The region fails: no response arrives from now on."""
        self._stopped = True

    def send(
        self,
        index: int,
        served: Served[Request],
        on_first: Callable[[], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Send a request to an engine; the callbacks report the first and the last byte of the response."""
        clock, began_at = self.clock, self.clock.now
        served.engine = index
        at_start = self.in_flight[index]
        self.in_flight[index] += 1

        def first() -> None:
            if self._stopped:
                return
            served.first_s = clock.now - served.request.at_s
            if on_first is not None:
                on_first()

        def end() -> None:
            if self._stopped:
                return
            served.end_s = clock.now - served.request.at_s
            self._unanswered -= 1
            self.in_flight[index] -= 1
            self._latencies[index].see(at_start, clock.now - began_at)
            if on_end is not None:
                on_end()

        self.fleet.submit(index, served.request, first, end)

    def publish(self, number: int, published: Published) -> None:
        """Publish for one agent; the others read it soon if requests wait there."""
        self.shared.publish(number, published)
        for other, agent in enumerate(self._agents):
            if other != number:
                agent.notified(MIN_INTERVAL_S * self._rng.random() if self.shared.age_s is None else self.shared.age_s)

    def probe(self, index: int) -> Probe:
        """The reply of an engine to a probe of Prequal."""
        count = self.in_flight[index]
        return Probe(count, self._latencies[index].at(count))

    def use(self) -> list[float]:
        """The share (0-1) of the time in which each engine was busy."""
        return [self.fleet.busy_s(index) / self.clock.now for index in range(len(self.fleet.kinds))]

    def _arrive(self, agent: Agent[Request], served: Served[Request]) -> None:
        self.served.append(served)
        agent.arrive(served)
