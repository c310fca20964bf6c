"""Every request being carried now, what they share, and the one timer that looks after their deadlines."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from regional_agent.carry.exchange import Exchange
from regional_agent.carry.listener import ClientConnection
from regional_agent.carry.messages import Request
from regional_agent.carry.upstream import UpstreamPool
from regional_agent.metrics import AgentMetrics
from regional_agent.road import Road, Ticket

SWEEP_S = 0.1
"""How often deadlines and failed peers are looked at, in seconds."""


class Carrier:
    """Starts exchanges and knows those in progress."""

    def __init__(self, road: Road, pool: UpstreamPool, metrics: AgentMetrics) -> None:
        """The road decides, the pool connects, the metrics count."""
        self.road = road
        self.pool = pool
        self.metrics = metrics
        self.clock = time.monotonic
        self._active: set[Exchange] = set()
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look after deadlines."""
        self._sweeper = asyncio.create_task(self._sweep())

    def stop(self) -> None:
        """Stop the timer; exchanges end with their connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    def carry(self, client: ClientConnection, request: Request, ticket: Ticket) -> Exchange:
        """Start carrying a request."""
        exchange = Exchange(self, client, request, ticket)
        self._active.add(exchange)
        exchange.seek()
        return exchange

    def ended(self, exchange: Exchange) -> None:
        """An exchange has settled."""
        self._active.discard(exchange)

    def in_flight(self) -> Counter[str]:
        """Requests being carried, by model."""
        return Counter(exchange.model for exchange in self._active)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self.clock()
            for exchange in list(self._active):
                exchange.check(now)
