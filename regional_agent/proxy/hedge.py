"""The second attempt of a slow request: the endpoint that responds first serves it, and the other is cancelled.

A second attempt is sent only for requests of routes that the policy marks as hedged, if their responses are not
streamed, and only to a free slot of this region: a second attempt is never queued or forwarded.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from regional_agent.http.headers.header_rules import Header
from regional_agent.http.messages import Request
from regional_agent.http.request_sequence import RequestSequence
from regional_agent.proxy.exchange_services import ExchangeServices
from regional_agent.proxy.target_connection import TargetConnection, TargetSink
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import LocalAttempt
from regional_agent.telemetry.outcomes import HedgeOutcome
from regional_agent.upstream.response_head import ResponseHead
from regional_agent.upstream.upstream_sink import BytesSink, ConnectFailed, Stale, UpstreamError

PLANNED: Final = "planned"
"""The delay is not over, or no second attempt is sent."""
CONNECTING: Final = "connecting"
AWAITING: Final = "awaiting"
"""The second attempt was sent; no byte of a response body has arrived."""
REJECTED: Final = "rejected"
"""The second endpoint responded with an error, which is read and dropped."""
WON: Final = "won"
"""The second attempt serves the request, and the exchange owns it."""
OVER: Final = "over"
"""The second attempt has ended, and the hedge owns no attempt."""

TRANSITIONS: Final = {
    PLANNED: (CONNECTING, AWAITING, OVER),
    CONNECTING: (AWAITING, OVER),
    AWAITING: (REJECTED, WON, OVER),
    REJECTED: (OVER,),
    WON: (),
    OVER: (),
}
"""The allowed transitions."""

_HOLDS: Final = (CONNECTING, AWAITING, REJECTED)
"""The states in which the hedge owns an attempt."""


class InvalidHedgeTransition(Exception):
    """Raised for a transition that TRANSITIONS does not contain, which is a defect."""


class HedgedExchange(TargetSink, Protocol):
    """An exchange whose request may have a second attempt."""

    def waiting_attempt(self) -> LocalAttempt | None:
        """The attempt at an endpoint of this region that the request waits for; None in any other state."""

    def take_over(self, attempt: LocalAttempt, target: TargetConnection, head: ResponseHead | None) -> None:
        """Cancel the first attempt, and continue with `attempt`, whose request has been sent."""


def plan_hedge(
    exchange: HedgedExchange,
    services: ExchangeServices,
    client: RequestSequence,
    request: Request,
    context: RequestContext,
    now: float,
) -> Hedge | None:
    """Plan the second attempt of a request whose first was sent at `now` (s); None if it is not hedged."""
    route = request.route
    if route is None or not (route.hedged and route.repeatable and request.whole) or context.estimate.streaming:
        return None
    if request.upgrade or exchange.waiting_attempt() is None:
        return None
    return Hedge(exchange, services, client, request, context, route.name, now)


class Hedge:
    """The second attempt of one request, and the sink of its response."""

    __slots__ = (
        "_attempt",
        "_context",
        "_exchange",
        "_head",
        "_key",
        "_request",
        "_sent_at",
        "_services",
        "_target",
        "_timer",
        "state",
    )

    def __init__(
        self,
        exchange: HedgedExchange,
        services: ExchangeServices,
        client: RequestSequence,
        request: Request,
        context: RequestContext,
        route: str,
        now: float,
    ) -> None:
        """Start the delay; see `plan_hedge`."""
        self._exchange: HedgedExchange | None = exchange
        self._services = services
        self._request = request
        self._context = context
        self._key = (route, context.model)
        self._sent_at = now
        self._attempt: LocalAttempt | None = None
        self._target = TargetConnection(services, client, request, context)
        self._head: ResponseHead | None = None
        self.state = PLANNED
        services.hedging.budget.request()
        delay_s = services.hedging.delays.delay_s(*self._key)
        self._timer = None if delay_s is None else asyncio.get_running_loop().call_later(delay_s, self._start)

    def _enter(self, state: str) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvalidHedgeTransition(f"{self.state} -> {state}")
        self.state = state

    def _start(self) -> None:
        """Send the second attempt at the end of the delay, if the budget permits it and a slot is free."""
        self._timer = None
        services, first = self._services, self._exchange.waiting_attempt() if self._exchange is not None else None
        if first is None or self._request.body_dropped:
            return
        if not services.hedging.budget.allows_one:
            self._count(HedgeOutcome.NO_BUDGET)
            return
        now = services.clock()
        attempt = services.router.second_target(self._context, first, now)
        if attempt is None:
            self._count(HedgeOutcome.NO_SLOT)
            return
        services.hedging.budget.withdraw()
        self._attempt = attempt
        if self._target.take_idle(attempt):
            self._send(attempt, now)
        else:
            self._enter(CONNECTING)
            self._target.connect(attempt, self)

    def _send(self, attempt: LocalAttempt, now: float) -> None:
        self._enter(AWAITING)
        self._target.send(attempt, self, now)

    def win(self) -> bool:
        """Serve the request by the second attempt from here on; False if no second attempt awaits a response."""
        exchange, attempt = self._exchange, self._attempt
        if self.state is not AWAITING or exchange is None or attempt is None:
            return False
        self._enter(WON)
        self._count(HedgeOutcome.WON)
        exchange.take_over(attempt, self._target, self._head)
        return True

    def cancel(self) -> None:
        """Cancel the second attempt, unless it serves the request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.state in _HOLDS:
            self._release(HedgeOutcome.LOST)

    def close(self, now: float, *, completed: bool) -> None:
        """End the hedge of a request that ended at `now` (s); records the time of a request that was `completed`."""
        self.cancel()
        self._exchange = None
        if completed:
            self._services.hedging.delays.record(*self._key, now - self._sent_at)

    def _release(self, outcome: HedgeOutcome) -> None:
        self._enter(OVER)
        self._target.drop()
        if self._attempt is not None:
            attempt, now = self._attempt, self._services.clock()
            usage = self._services.recorder.metrics.usage
            usage.overhead(attempt.estimate, now - attempt.since, attempt.mean_streams())
            attempt.settle(now)
        self._count(outcome)

    def _count(self, outcome: HedgeOutcome) -> None:
        self._services.recorder.metrics.hedged(outcome)

    # TargetSink

    def on_connected(self) -> None:
        """Send the request over the new connection, unless its body was dropped in the meantime."""
        if self._request.body_dropped:
            self._release(HedgeOutcome.FAILED)
        elif self._attempt is not None:
            self._send(self._attempt, self._services.clock())

    def on_head(self, head: ResponseHead) -> None:
        """Hold the head. An error does not win: the first endpoint may succeed, or will respond with the same error."""
        if self.state is WON and self._exchange is not None:
            self._exchange.on_head(head)
        elif self._attempt is not None:
            self._head = head
            if self._attempt.on_head(head.status, head.by_name, head.headers) is not None or head.status >= 400:
                self._enter(REJECTED)

    def on_body(self, chunk: bytes) -> None:
        """Forward a part of the body; with the first part the second attempt wins."""
        if (self.state is WON or self.win()) and self._exchange is not None:
            self._exchange.on_body(chunk)

    def on_pause(self) -> None:
        """Forward the end of a read."""
        if self.state is WON and self._exchange is not None:
            self._exchange.on_pause()

    def on_end(self) -> None:
        """Complete the response of an attempt that wins, or release an attempt that was rejected."""
        if self.state is REJECTED:
            self._target.detach()
            self._release(HedgeOutcome.FAILED)
        elif (self.state is WON or self.win()) and self._exchange is not None:
            self._exchange.on_end()

    def on_broken(self, error: UpstreamError) -> None:
        """Process a failure to connect, or a connection that closed before the response was complete."""
        if self.state is WON:
            if self._exchange is not None:
                self._exchange.on_broken(error)
            return
        self._target.detach()
        if self._attempt is not None and self.state is not REJECTED and not isinstance(error, Stale):
            self._attempt.unreachable(self._context, broke=not isinstance(error, ConnectFailed))
        self._release(HedgeOutcome.FAILED)

    def on_writable(self, writable: bool) -> None:
        """Forward the back-pressure of the endpoint."""
        if self.state is WON and self._exchange is not None:
            self._exchange.on_writable(writable)

    def on_upgraded(self, headers: list[Header]) -> BytesSink:
        """Not called: requests that offer an upgrade are not hedged."""
        raise InvalidHedgeTransition("a hedged request was upgraded")
