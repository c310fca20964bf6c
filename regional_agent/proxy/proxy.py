"""Starts the exchanges of an agent, and runs the one timer that enforces their deadlines."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from random import Random
from typing import Final

import structlog

from penstock.routing.reasons import Refusal
from regional_agent.background_tasks import keep_running, sleep_until_tick
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request
from regional_agent.proxy.exchange import Exchange
from regional_agent.proxy.exchange_services import ExchangeServices
from regional_agent.proxy.outcome_recorder import OutcomeRecorder
from regional_agent.proxy.policy_enforcer import PolicyEnforcer
from regional_agent.proxy.timer_wheel import SLOT_S
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.router import Router
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.request_tally import RequestTally
from regional_agent.telemetry.tracing.tracer import Tracer
from regional_agent.upstream.upstream_pool import UpstreamPool

DECISIONS_PER_SAMPLE: Final = 32
"""Number of requests for each measured decision time; the first request is measured."""

log = structlog.get_logger()


class Proxy:
    """Creates exchanges, and holds the exchanges in progress."""

    def __init__(
        self,
        router: Router,
        pool: UpstreamPool,
        metrics: AgentMetrics,
        tally: RequestTally,
        limits: Limits,
        *,
        via: bytes,
        rng: Random,
        peer_pool: UpstreamPool | None = None,
        access_log: AccessLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Connect the parts; `start` runs the timer.

        Args:
            pool: connections to endpoints.
            tally: counts outcomes for the reports to the control plane.
            via: this agent's entry in Via headers; unique in the fleet, so that loops are detected.
            rng: spreads the Retry-After times of refusals.
            peer_pool: connections to other regions' agents; None uses `pool`.
            tracer: None exports no spans.
        """
        self.router = router
        self.metrics = metrics
        self.limits = limits
        self.via = via
        self.rng = rng
        self.clock = time.monotonic
        self._recorder = OutcomeRecorder(router.region, metrics, tally, access_log, tracer)
        self._tracer = tracer
        self._services = ExchangeServices(
            router, pool, peer_pool or pool, self._recorder, limits, via=via, rng=rng, clock=self.clock
        )
        self.retry_budget = self._services.retry_budget
        self.active = self._services.active
        """The exchanges in progress."""
        self._enforcer = PolicyEnforcer(router.reauthorization, self.active)
        self._unmeasured = 1
        """Number of requests until the next measurement of a decision time."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the timer, and the enforcement of new policies."""
        self._tasks = [
            keep_running("deadlines of requests", self._sweep),
            keep_running("policy of open requests", self._enforcer.run),
        ]

    def stop(self) -> None:
        """Stop what `start` started. Exchanges in progress end with their client connections."""
        for task in self._tasks:
            task.cancel()

    def shut_down(self) -> int:
        """End the exchanges in progress because the agent stops; returns how many."""
        ended = 0
        for exchange in list(self.active):
            try:
                exchange.shut_down()
            except Exception:
                # A defect that prevents the end of one request must not prevent the end of the others.
                log.exception("a request could not be ended", tenant=exchange.tenant)
            ended += 1
        return ended

    def handle(self, client: ClientConnection, request: Request, context: RequestContext) -> Exchange:
        """Start the exchange of a request."""
        if self._tracer is not None:
            self._tracer.begin(context, trusted=client.trusted, now=self.clock())
        exchange = Exchange(self._services, client, request, context)
        self.active.add(exchange)
        self.retry_budget.request(context.received_at)
        try:
            exchange.select(context.received_at)
        except BaseException:
            # The client connection closes without the exchange as its handler, so it must be ended here.
            exchange.on_client_gone()
            raise
        self._unmeasured -= 1
        if not self._unmeasured:
            self._unmeasured = DECISIONS_PER_SAMPLE
            self.metrics.decided(self.clock() - context.received_at)
        return exchange

    def record_rejected(self, request: Request, refusal: Refusal, request_id: str) -> None:
        """Record a request that was refused before an exchange began."""
        self._recorder.record_rejected(request, refusal, request_id)

    def in_flight(self) -> Counter[str]:
        """Exchanges in progress, by model."""
        return Counter(exchange.model for exchange in self.active)

    async def _sweep(self) -> None:
        while True:
            await sleep_until_tick(SLOT_S)
            self.active.turn(self.clock())
            self._recorder.flush()
