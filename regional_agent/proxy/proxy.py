"""Every request being carried now, what they share, and the one timer that looks after their deadlines."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from random import Random
from typing import Final

from penstock.admission.retry_budget import RetryBudget
from penstock.routing.reasons import Refusal
from regional_agent.background_tasks import beat, keep_running
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request
from regional_agent.http.request_sequence import RequestSequence
from regional_agent.proxy.access_log import AccessLine, AccessLog
from regional_agent.proxy.error_responses import STATUS
from regional_agent.proxy.exchange import Exchange
from regional_agent.proxy.timer_wheel import SLOT_S, TimerWheel
from regional_agent.routing.request_context import RequestContext, Target
from regional_agent.routing.router import Router
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.upstream.upstream_pool import UpstreamPool

MAX_SIGNATURES: Final = 4096


class Signatures(dict[str, bytes]):
    """The header lines that say who of a region served, by the endpoint's name."""

    def __init__(self, region: str) -> None:
        self._region = region

    def __missing__(self, endpoint: str) -> bytes:
        if len(self) >= MAX_SIGNATURES:
            self.clear()
        lines = self[endpoint] = b"x-penstock-region: %b\r\nx-penstock-endpoint: %b\r\n" % (
            self._region.encode(),
            endpoint.encode(),
        )
        return lines


class Proxy:
    """Starts exchanges and knows those in progress."""

    def __init__(
        self,
        road: Router,
        pool: UpstreamPool,
        metrics: AgentMetrics,
        limits: Limits,
        *,
        via: bytes,
        rng: Random,
        peer_pool: UpstreamPool | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        """The road decides, the pools connect, the metrics count.

        Args:
            via: this agent in Via headers; unique in the fleet, so that a loop is noticed.
            rng: spreads the times at which refused clients come again.
            peer_pool: connections to other regions' agents; None takes those of `pool`.
        """
        self.road = road
        self.metrics = metrics
        self.limits = limits
        self.via = via
        self.rng = rng
        self.access_log = access_log
        self.clock = time.monotonic
        self.wall_clock = time.time
        self.retries = RetryBudget(self.clock())
        self.signatures = Signatures(road.region)
        self._pool = pool
        self._peer_pool = peer_pool or pool
        self.active: TimerWheel[Exchange] = TimerWheel()
        """Those in progress; each leaves when it has settled."""
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look after deadlines."""
        self._sweeper = keep_running("deadlines of requests", self._sweep)

    def stop(self) -> None:
        """Stop the timer; exchanges end with their connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    def carry(self, client: RequestSequence, request: Request, context: RequestContext) -> Exchange:
        """Start carrying a request."""
        exchange = Exchange(self, client, request, context)
        self.active.add(exchange)
        self.retries.request(context.received_at)
        exchange.seek(context.received_at)
        return exchange

    def refused_at_once(self, request: Request, refusal: Refusal) -> None:
        """A request was refused before it could be carried: counted, and logged."""
        self.metrics.refused(refusal.reason)
        self.road.request_tally.turned_away(refusal.reason)
        if self.access_log is not None:
            self.access_log.add(
                AccessLine(
                    at=self.wall_clock(),
                    request_id="",
                    tenant="",
                    model="",
                    path=request.path.decode("latin-1"),
                    kind="",
                    server="",
                    endpoint="",
                    outcome=refusal.reason,
                    status=STATUS[refusal.reason],
                    attempts=0,
                    received_bytes=request.received_bytes,
                    sent_bytes=0,
                    total_ms=0.0,
                )
            )

    def pool_for(self, target: Target) -> UpstreamPool:
        """Connections to engines, or to peers."""
        return self._pool if target.endpoint is not None else self._peer_pool

    def in_flight(self) -> Counter[str]:
        """Requests being carried, by model."""
        return Counter(exchange.model for exchange in self.active)

    async def _sweep(self) -> None:
        while True:
            await beat(SLOT_S)
            self.active.turn(self.clock())
            if self.access_log is not None:
                self.access_log.flush()
                self.metrics.access_lines_dropped(self.access_log.dropped_lines)
