"""A region on the virtual clock: several agents of one kind that share the same engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final, Generic, NamedTuple, Protocol

import msgspec

from lab.simulate.baselines.balancer import Probe
from lab.simulate.clock import VirtualClock
from lab.simulate.fleets import EngineFleet, FleetFactory, LatencyEstimate, Request
from lab.simulate.shared_view import Published, SharedView
from penstock.fleet.shared_counts import MIN_INTERVAL_S


class Served(msgspec.Struct, Generic[Request]):
    """The result of one request; times are seconds since its arrival."""

    request: Request
    engine: int = -1
    first_s: float | None = None
    end_s: float | None = None
    sent_at: float | None = None
    """Time (s) at which an agent sent the request to an engine."""
    on_end: Callable[[], None] | None = None
    """Called at the end of the response."""
    is_long: bool = False
    """Whether the agent that received the request estimates that its prompt is long."""


class Sender(NamedTuple):
    """What policy says of the tenant of a request."""

    tenant: str = ""
    priority: int = 0
    weight: float = 1.0


ONE_SENDER: Final = Sender()


class Agent(Protocol[Request]):
    """An agent, which receives requests and sends them to engines with `Region.send`."""

    def arrive(self, served: Served[Request]) -> None:
        """Receive a request of a client."""

    def notified(self, delay_s: float) -> None:
        """Read another agent's publication after `delay_s`, if requests wait at this agent."""


class Region(Generic[Request]):
    """The engines, agents and requests of a region in one run."""

    def __init__(
        self,
        fleet: FleetFactory[Request],
        agents: int,
        seed: int,
        view_age_s: float | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        """Create an idle region without agents; equal seeds give equal runs.

        Args:
            agents: number of agents.
            view_age_s: age (s) of the shared view; None for the product's exchange of load.
            clock: clock shared by several regions; None creates a clock.
        """
        self.clock = clock or VirtualClock()
        self.fleet: EngineFleet[Request] = fleet(self.clock)
        self.shared = SharedView(agents, view_age_s)
        self.served: list[Served[Request]] = []
        self.seed = seed
        self.in_flight = [0] * len(self.fleet.kinds)
        """Requests in flight on each engine, of all agents."""
        self._latencies = [LatencyEstimate() for _ in self.fleet.kinds]
        self.senders: Mapping[str, Sender] = {}
        """By the tenant of a request; all other tenants count as one."""
        self.agents = agents
        self._agents: Sequence[Agent[Request]] = ()
        self._rng = Random(seed)
        self._unanswered = 0
        self._stopped = False

    def set_agents(self, agents: Sequence[Agent[Request]]) -> None:
        """Set the agents among which `arrive` selects."""
        self._agents = agents

    def run(self, requests: Sequence[Request], agents: Sequence[Agent[Request]]) -> None:
        """Send each request to a random agent, and run until the last response."""
        self.set_agents(agents)
        for request in requests:
            self.clock.at(request.at_s, partial(self._arrive, self._rng.choice(agents), Served(request)))
        self._unanswered = len(requests)
        while self._unanswered:
            self.clock.step()

    def arrive(self, request: Request, on_end: Callable[[], None] | None = None) -> Served[Request]:
        """Send a request to a random agent. The caller advances the clock; `on_end` reports the end of the response."""
        served = Served(request, on_end=on_end)
        self._unanswered += 1
        self._arrive(self._rng.choice(self._agents), served)
        return served

    def stop(self) -> None:
        """Fail the region: no further response arrives."""
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
        served.engine, served.sent_at = index, began_at
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
            self._latencies[index].observe(at_start, clock.now - began_at)
            if on_end is not None:
                on_end()
            if served.on_end is not None:
                served.on_end()

        self.fleet.submit(index, served.request, first, end)

    def publish(self, number: int, published: Published) -> None:
        """Publish for one agent, and notify the other agents."""
        self.shared.publish(number, published)
        for other, agent in enumerate(self._agents):
            if other != number:
                agent.notified(MIN_INTERVAL_S * self._rng.random() if self.shared.age_s is None else self.shared.age_s)

    def probe(self, index: int) -> Probe:
        """Return the reply of an engine to a Prequal probe."""
        count = self.in_flight[index]
        return Probe(count, self._latencies[index].at(count))

    def use(self) -> list[float]:
        """Return the busy share (0-1) of each engine."""
        return [self.fleet.busy_s(index) / self.clock.now for index in range(len(self.fleet.kinds))]

    def _arrive(self, agent: Agent[Request], served: Served[Request]) -> None:
        self.served.append(served)
        agent.arrive(served)
