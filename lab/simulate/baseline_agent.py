"""One agent of a baseline on the virtual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Generic

from lab.simulate.baselines.balancer import Balancer, EngineReport, PoolView, Probe
from lab.simulate.fleets import Request
from lab.simulate.region import Region, Served
from lab.simulate.shared_view import Published
from penstock.pools.pool_accounting import NO_LOAD
from regional_agent.shared_load.published_load import PublishedLoad

SCRAPE_S = 0.05
"""Interval (s) at which the engines' metrics are read: the default of llm-d (`refreshMetricsInterval`)."""

BalancerFactory = Callable[[PoolView, Random], Balancer]


class BaselineAgent(Generic[Request]):
    """Sends each request to the endpoint that a balancer chooses; requests without an endpoint wait in the agent."""

    def __init__(self, region: Region[Request], number: int, balancer: BalancerFactory, *, shares_counts: bool) -> None:
        """Create an agent.

        Args:
            number: index of the agent, from 0.
            balancer: creates the agent's balancer.
            shares_counts: whether agents share their counts of requests in flight.
        """
        self.weights = tuple(kind.speed for kind in region.fleet.kinds)
        self.size = len(self.weights)
        self._region: Region[Request] = region
        self._number = number
        self._shares = shares_counts
        rng = Random(region.seed * 1000 + number)
        self._reader = region.shared.reader(number, rng.random())
        self._own = [0] * self.size
        self._remote: dict[int, Published] = {}
        self._reports: list[EngineReport] = []
        self._scraped_at = -SCRAPE_S
        self._queue: deque[Served[Request]] = deque()
        self._polls = False
        self.balancer = balancer(self, rng)

    def in_flight(self, index: int) -> int:
        """As `PoolView.in_flight`."""
        count, name = self._own[index], str(index)
        for published in self._remote.values():
            count += published.load.loads.get(name, NO_LOAD)[0]
        return count

    def report(self, index: int) -> EngineReport:
        """As `PoolView.report`."""
        now = self._region.clock.now
        if now - self._scraped_at >= SCRAPE_S:
            self._scraped_at = now
            self._reports = [self._region.fleet.report(engine) for engine in range(self.size)]
        return self._reports[index]

    def probe(self, index: int) -> Probe:
        """As `PoolView.probe`."""
        return self._region.probe(index)

    def arrive(self, served: Served[Request]) -> None:
        """Receive a request of a client."""
        self._queue.append(served)
        self._send_all()

    def notified(self, delay_s: float) -> None:
        """As `Agent.notified`; this agent ignores notifications."""

    def _send_all(self) -> None:
        clock = self._region.clock
        if self._shares:
            for number, published in self._reader.read(clock.now, exchanges=True):
                self._remote[number] = published
        while self._queue:
            index = self.balancer.choose(self._region.fleet.arrival(self._queue[0].request), clock.now)
            if index is None:
                if not self._polls:
                    self._polls = True
                    clock.at(clock.now + SCRAPE_S, self._poll)
                return
            self._send(index, self._queue.popleft())

    def _send(self, index: int, served: Served[Request]) -> None:
        arrival = self._region.fleet.arrival(served.request)
        self.balancer.sent(index, arrival, self._region.clock.now)
        self._count(index, 1)

        def on_first() -> None:
            self.balancer.first_token(index, arrival)

        def on_end() -> None:
            self._count(index, -1)
            if self._queue:
                self._send_all()

        self._region.send(index, served, on_first, on_end)

    def _count(self, index: int, change: int) -> None:
        self._own[index] += change
        if self._shares:
            loads = {str(engine): (count, 0, 0) for engine, count in enumerate(self._own) if count}
            load = PublishedLoad(f"agent-{self._number}", 1, 0, loads)
            self._region.shared.publish(self._number, Published(self._region.clock.now, load, None, {}))

    def _poll(self) -> None:
        self._polls = False
        self._send_all()
