"""What the exchanges of an agent share, and the timer that enforces their deadlines."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from random import Random

import structlog

from penstock.answers.answer_format import AnswerFormats
from penstock.answers.stream_usage_flag import UsageRequests
from penstock.retries.retry_budget import RetryBudget
from penstock.routes.timeouts import NO_TIMEOUTS, TimeLimits, agent_limits, time_limits
from regional_agent.background_tasks import keep_running, sleep_until_tick
from regional_agent.http.limits import Limits
from regional_agent.proxy.outcome_recorder import OutcomeRecorder
from regional_agent.proxy.policy_enforcer import ActiveExchange, PolicyEnforcer
from regional_agent.proxy.responses.client_response import ResponseHeaders
from regional_agent.proxy.timer_wheel import SLOT_S, TimerWheel
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.router import Router
from regional_agent.upstream.upstream_pool import UpstreamPools

log = structlog.get_logger()


class Proxy:
    """The collaborators of exchanges, and the exchanges in progress."""

    def __init__(
        self,
        router: Router,
        pools: UpstreamPools,
        recorder: OutcomeRecorder,
        limits: Limits,
        *,
        via: bytes,
        rng: Random,
    ) -> None:
        """Connect the parts; `start` runs the timer.

        Args:
            pools: connections to endpoints and to other regions' agents.
            recorder: records finished requests.
            via: this agent's entry in Via headers; unique in the fleet, so that loops are detected.
            rng: spreads the Retry-After times of refusals.
        """
        self.router = router
        self.pools = pools
        self.recorder = recorder
        self.metrics = recorder.metrics
        self.limits = limits
        self.via = via
        self.rng = rng
        self.clock = time.monotonic
        self.time_limits = agent_limits(limits.first_byte_timeout_s, limits.stall_timeout_s, limits.request_timeout_s)
        """The time limits that apply where neither the model nor the route of a request sets a limit."""
        self.time_limits_with_tools = self.time_limits.with_tools()
        """Those of requests with tools."""
        self.answer_formats = AnswerFormats()
        self.usage_requests = UsageRequests()
        """The models whose engines refuse to report the usage of a stream on request."""
        self.retry_budget = RetryBudget(self.clock())
        self.response_headers = ResponseHeaders(router.region)
        self.active: TimerWheel[ActiveExchange] = TimerWheel()
        """The exchanges in progress."""
        if recorder.ledger is not None:
            recorder.ledger.open_requests = self._open_requests
        self.until_measured = 1
        """Number of requests until the next measurement of a decision time; the first request is measured."""
        self._enforcer = PolicyEnforcer(router.reauthorization, self.active)
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

    def time_limits_of(self, context: RequestContext) -> TimeLimits:
        """Return the time limits of a request, by its model, its route and the agent."""
        model, route = context.policy.models.get(context.model), context.request.route
        return time_limits(
            model.timeouts if model is not None else NO_TIMEOUTS,
            route.timeouts if route is not None else NO_TIMEOUTS,
            self.time_limits_with_tools if context.estimate.ask.offers_tools else self.time_limits,
        )

    def shut_down(self) -> int:
        """End the exchanges in progress because the agent stops; returns how many."""
        ended = 0
        for exchange in list(self.active):
            try:
                exchange.shut_down()
            except Exception:
                # A defect that prevents the end of one request must not prevent the end of the others.
                log.exception("a request could not be ended", tenant=exchange.context.facts.tenant)
            ended += 1
        return ended

    def _open_requests(self) -> list[RequestContext]:
        return [exchange.context for exchange in self.active]

    def in_flight(self) -> Counter[str]:
        """Exchanges in progress, by model."""
        return Counter(exchange.context.model for exchange in self.active)

    async def _sweep(self) -> None:
        while True:
            await sleep_until_tick(SLOT_S)
            self.active.turn(self.clock())
            self.recorder.flush()
