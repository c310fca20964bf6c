"""One proxied request as a state machine: select a target, send, stream the response, or try another target.

A response head is held until the first body byte: engines send the head before they start, and until the client has
received a byte the request can be retried elsewhere. A request with an incomplete body is forwarded as it arrives; it
can be retried while everything that was sent is also kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from penstock.admission.retry_budget import RetryBudget
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.header_rules import Header, response_lines_to_client
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request, status_line
from regional_agent.http.request_sequence import RequestSequence
from regional_agent.proxy.client_response import ClientResponse
from regional_agent.proxy.error_responses import refusal_response
from regional_agent.proxy.outcome_recorder import OutcomeRecorder
from regional_agent.proxy.timer_wheel import TimerWheel
from regional_agent.proxy.tunnel import Tunnel
from regional_agent.proxy.upstream_request import build_upstream_request
from regional_agent.routing.admission_queue import QueueEntry
from regional_agent.routing.attempt import Attempt
from regional_agent.routing.request_context import RequestContext
from regional_agent.routing.router import Router
from regional_agent.telemetry.agent_metrics import RequestOutcome, RetryReason
from regional_agent.upstream.response_head import ResponseHead
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import ConnectFailed, Stale, TimedOut, UpstreamError

REJECTION_READ_S: Final = 1.0
"""How long (s) the body of a rejection is read, so that its connection can be reused; then the connection is closed."""

STALE_S: Final = 1.0
"""A reused connection that closes this soon (s) after a request was sent was already being closed by the server."""

CHECKS_PER_STALL: Final = 20
"""A stream is checked this often within the stall timeout; a stall is detected that much later at most."""

MAX_CACHED_ENDPOINTS: Final = 4096

_OK, _SATURATED = RequestOutcome.OK, Reason.SATURATED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


class State:
    """A state of an exchange."""

    __slots__ = ("name", "successors")

    def __init__(self, name: str) -> None:
        self.name = name
        self.successors: frozenset[State] = frozenset()
        """Set from TRANSITIONS."""

    def __repr__(self) -> str:
        return self.name


SELECTING: Final = State("selecting")
"""The router selects a target."""
QUEUED: Final = State("queued")
"""All targets are full; the request is in the admission queue."""
CONNECTING: Final = State("connecting")
"""A connection to the target is being opened."""
AWAITING: Final = State("awaiting")
"""The request was sent; no byte of a response body has arrived."""
REJECTED: Final = State("rejected")
"""The target rejected the request without starting it; the rest of its response is read and dropped."""
STREAMING: Final = State("streaming")
"""The client has received a part of the response: no retry is possible."""
TUNNEL: Final = State("tunnel")
"""The protocol was upgraded; bytes are forwarded both ways."""
DONE: Final = State("done")
"""Everything is released and the outcome is recorded."""

TRANSITIONS: Final[dict[State, tuple[State, ...]]] = {
    SELECTING: (SELECTING, QUEUED, CONNECTING, AWAITING, DONE),  # SELECTING again: with the fallback model
    QUEUED: (SELECTING, DONE),
    CONNECTING: (AWAITING, SELECTING, DONE),
    AWAITING: (REJECTED, STREAMING, TUNNEL, CONNECTING, SELECTING, DONE),  # CONNECTING: the connection was stale
    REJECTED: (SELECTING, DONE),
    STREAMING: (DONE,),
    TUNNEL: (DONE,),
    DONE: (),
}
"""The allowed transitions."""

for _state, _successors in TRANSITIONS.items():
    _state.successors = frozenset(_successors)


class InvalidTransition(Exception):
    """A transition that TRANSITIONS does not contain: a defect."""


class EndpointHeaders(dict[str, bytes]):
    """The response header lines that name the region and the endpoint, cached by the endpoint's name."""

    def __init__(self, region: str) -> None:
        self._region = region

    def __missing__(self, endpoint: str) -> bytes:
        if len(self) >= MAX_CACHED_ENDPOINTS:
            self.clear()
        lines = self[endpoint] = b"x-penstock-region: %b\r\nx-penstock-endpoint: %b\r\n" % (
            self._region.encode(),
            endpoint.encode(),
        )
        return lines


class ExchangeServices:
    """What all exchanges of a proxy share."""

    __slots__ = (
        "active",
        "clock",
        "endpoint_headers",
        "endpoint_pool",
        "limits",
        "peer_pool",
        "recorder",
        "retry_budget",
        "rng",
        "router",
        "via",
    )

    def __init__(
        self,
        router: Router,
        endpoint_pool: UpstreamPool,
        peer_pool: UpstreamPool,
        recorder: OutcomeRecorder,
        limits: Limits,
        *,
        via: bytes,
        rng: Random,
        clock: Callable[[], float],
    ) -> None:
        """Bundle the collaborators.

        Args:
            via: this agent's entry in Via headers.
            rng: spreads the Retry-After times of refusals.
            clock: monotonic (s).
        """
        self.router = router
        self.endpoint_pool = endpoint_pool
        self.peer_pool = peer_pool
        self.recorder = recorder
        self.limits = limits
        self.via = via
        self.rng = rng
        self.clock = clock
        self.retry_budget = RetryBudget(clock())
        self.endpoint_headers = EndpointHeaders(router.region)
        self.active: TimerWheel[Exchange] = TimerWheel()
        """The exchanges in progress."""


class Exchange:
    """Handles one client request; the sink of one upstream response at a time."""

    __slots__ = (
        "_attempt",
        "_client",
        "_client_stalled",
        "_connecting",
        "_context",
        "_first_byte_at",
        "_head",
        "_last_data_at",
        "_queue_entry",
        "_reconnected",
        "_rejected_because",
        "_request",
        "_response",
        "_sent_at",
        "_services",
        "_state",
        "_status",
        "_tunnel",
        "_upstream",
        "slot",
    )

    def __init__(
        self, services: ExchangeServices, client: RequestSequence, request: Request, context: RequestContext
    ) -> None:
        self._services = services
        self._client = client
        self._request = request
        self._context = context
        self._state = SELECTING
        self._response = ClientResponse(client)
        self._attempt: Attempt | None = None
        """The current attempt, or the last one; it holds a reservation until it is settled."""
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reconnected = False
        """The request was sent again to the same target because its connection was stale."""
        self._tunnel: Tunnel | None = None
        self._queue_entry: QueueEntry | None = None
        self._status = 0
        self._head: ResponseHead | None = None
        self._rejected_because = _SATURATED
        """Why the target rejected the request."""
        self._sent_at = 0.0
        """When the request had been sent completely, or its head, while the body is incomplete."""
        self._first_byte_at: float | None = None
        self._last_data_at = 0.0
        """When data last arrived, or a wait for data began."""
        self._client_stalled = False
        """The client's write buffer is above its high-water mark."""
        self.slot: set[Exchange] = set()
        """For the timer wheel."""

    @property
    def model(self) -> str:
        """The requested model."""
        return self._context.model

    def _enter(self, state: State) -> None:
        if state not in self._state.successors:
            raise InvalidTransition(f"{self._state} -> {state}")
        self._state = state

    # selecting a target

    def select(self, now: float) -> None:
        """Ask the router for the next target and send the request there; a refusal ends the exchange. `now` in s."""
        self._enter(SELECTING)
        if not self._request.whole:
            self._client.pause_reading()
        attempt = self._services.router.next_target(self._context, now)
        if not isinstance(attempt, Refusal):
            self._go_to(attempt, now)
        elif attempt.reason is _SATURATED:
            self._queue(attempt)
        else:
            self._fall_back_or_refuse(attempt)

    def _fall_back_or_refuse(self, refusal: Refusal) -> None:
        """Try the policy's fallback model; without one, refuse."""
        if self._services.router.fall_back(self._context, self._request, refusal):
            self.select(self._services.clock())
        else:
            self._refuse(refusal)

    def _queue(self, refusal: Refusal) -> None:
        """All targets are full: join the admission queue, unless waiting is of no use."""
        request, services = self._request, self._services
        # The rest of a body that fits into memory is read meanwhile, which also detects a disconnect of the client.
        reads_on = request.length is not None and request.length <= services.limits.kept_body_bytes
        size_bytes = max(len(request.body), request.length or 0) if reads_on else len(request.body)
        entry = services.router.wait(self._context, size_bytes, self._on_turn, services.clock())
        if isinstance(entry, Refusal):
            self._fall_back_or_refuse(
                Refusal(refusal.reason, f"{refusal.detail}; {entry.detail}", refusal.rejected, entry.retry_after_s)
            )
        else:
            self._enter(QUEUED)
            self._queue_entry = entry
            if reads_on and not request.whole:
                self._client.resume_reading()

    def _on_turn(self, attempt: Attempt | Refusal) -> None:
        """The admission queue found a target, or gave up."""
        if self._state is not QUEUED:
            if not isinstance(attempt, Refusal):
                attempt.settle(self._services.clock())
            return
        self._enter(SELECTING)
        self._queue_entry = None
        if not isinstance(attempt, Refusal):
            self._go_to(attempt, self._services.clock())
        elif attempt.reason is Reason.DEADLINE_PASSED:
            self._refuse(attempt, RequestOutcome.TIMEOUT)
        else:
            self._fall_back_or_refuse(attempt)

    # one attempt

    def _go_to(self, attempt: Attempt, now: float) -> None:
        self._attempt = attempt
        idle = self._pool(attempt).take(attempt.address)
        if idle is not None:
            self._send(idle, now)
        else:
            self._start_connecting(attempt)

    def _pool(self, attempt: Attempt) -> UpstreamPool:
        return self._services.peer_pool if attempt.from_peer else self._services.endpoint_pool

    def _start_connecting(self, attempt: Attempt) -> None:
        self._enter(CONNECTING)
        self._connecting = asyncio.create_task(self._connect(attempt))

    async def _connect(self, attempt: Attempt) -> None:
        try:
            connection = await self._pool(attempt).connect(attempt.address)
        except ConnectFailed as error:
            self._connecting = None
            self._lose(error)
            return
        self._connecting = None
        self._send(connection, self._services.clock())

    def _send(self, connection: UpstreamConnection, now: float) -> None:
        request, attempt = self._request, self._attempt
        assert attempt is not None
        self._enter(AWAITING)
        self._upstream, self._sent_at = connection, now
        data = build_upstream_request(request, self._context, attempt, self._client, self._services.via, now)
        if request.upgrade:
            connection.send_upgrade(self, data)
            return
        if request.whole:
            connection.send(self, data)
            return
        connection.send_partial(self, data, bytes(request.body), chunked=request.length is None)
        if connection.writable:
            self._client.resume_reading()

    def _after_rejection(self) -> None:
        """The rejection has been read: try another target, unless a peer reports that its engine may have started."""
        assert self._attempt is not None
        if self._rejected_because is Reason.ENGINE_TIMEOUT:
            detail = f"the engine in {self._attempt.region} did not begin in time"
            self._refuse(Refusal(Reason.ENGINE_TIMEOUT, detail), RequestOutcome.TIMEOUT)
            return
        self._attempt.rejected(self._context, self._rejected_because, self._services.clock())
        self._retry(self._attempt.retry_reason)

    def _lose(self, error: UpstreamError) -> None:
        """The attempt failed: retry if the client has received nothing, else end the response with an error."""
        attempt = self._attempt
        assert attempt is not None
        if self._state is STREAMING:
            attempt.broke_off()
            self._cut(Reason.ENGINE_FAILED, f"the stream broke off: {error}", RequestOutcome.ENGINE_ERROR)
            return
        if isinstance(error, Stale) and self._may_reconnect():
            self._reconnected = True
            if not self._request.whole:
                self._client.pause_reading()
            self._services.recorder.metrics.retried(RetryReason.STALE_CONNECTION)
            self._start_connecting(attempt)
            return
        self._drop_upstream()
        failed_connect = isinstance(error, ConnectFailed)
        attempt.unreachable(self._context, broke=not failed_connect)
        self._retry(RetryReason.CONNECT_FAILED if failed_connect else RetryReason.CLOSED_EARLY)

    def _may_reconnect(self) -> bool:
        """Whether the target has probably not seen the request. Once only: the request may cause the close."""
        soon = self._services.clock() - self._sent_at < STALE_S
        return soon and not self._reconnected and not self._request.body_dropped

    def _retry(self, why: RetryReason) -> None:
        """Try another target, if the request can be sent again and the retry budget permits it."""
        services, attempt = self._services, self._attempt
        assert attempt is not None
        now = services.clock()
        attempt.settle(now)
        self._attempt = None
        if self._request.body_dropped:
            detail = f"{why.value}, and the body is too large to be kept for a retry"
            self._refuse(Refusal(Reason.ENGINE_FAILED, detail))
        elif not services.retry_budget.withdraw(now):
            reason = Reason.ENGINE_FAILED if why in _FAILURES else Reason.SATURATED
            detail = f"{why.value}, and the retry budget is used up"
            self._refuse(Refusal(reason, detail, retry_after_s=services.retry_budget.more_in_s(now)))
        else:
            services.recorder.metrics.retried(why)
            self.select(now)

    # timeouts

    def check(self, now: float) -> float:
        """Enforce the deadline and the engine timeouts; returns when to check again (s)."""
        state, limits = self._state, self._services.limits
        if state is TUNNEL:
            if self._tunnel is not None and self._tunnel.idle_s(now) > limits.tunnel_idle_timeout_s:
                self._end_tunnel()
        elif now > self._context.deadline_at:
            self._expire()
        elif state is AWAITING:
            self._check_awaiting(now)
        elif state is REJECTED:
            if now - self._last_data_at > REJECTION_READ_S:
                self._drop_upstream()
                self._after_rejection()
        elif state is STREAMING:
            response = self._response
            response.count_relayed()
            if response.has_news or self._waits_for_client:
                response.has_news, self._last_data_at = False, now
            elif now - self._last_data_at > limits.stall_timeout_s:
                self._stall()
            return min(self._context.deadline_at, now + limits.stall_timeout_s / CHECKS_PER_STALL)
        return now

    def _check_awaiting(self, now: float) -> None:
        """Give up a target that does not begin to respond, or stops reading the request's body."""
        limits = self._services.limits
        assert self._attempt is not None
        self._attempt.check_prefill(now)
        if self._attempt.peer_failed():
            self._lose(TimedOut("the serving region has failed"))
        elif self._request.whole:
            if now - self._sent_at > limits.first_byte_timeout_s:
                self._give_up(f"did not begin to respond within {limits.first_byte_timeout_s:g} s")
        elif self._engine_stalled and now - self._last_data_at > limits.stall_timeout_s:
            self._give_up(f"read nothing more of the body for {limits.stall_timeout_s:g} s")

    @property
    def _engine_stalled(self) -> bool:
        return self._upstream is not None and not self._upstream.writable

    @property
    def _waits_for_client(self) -> bool:
        """Whether the client may be why the response stalls: it does not read, or its upload is incomplete."""
        return self._client_stalled or not (self._request.whole or self._engine_stalled)

    def _stall(self) -> None:
        """A response stopped arriving."""
        assert self._attempt is not None
        self._attempt.stalled()
        stalled_s = self._services.limits.stall_timeout_s
        self._cut(Reason.STREAM_STALLED, f"no data for {stalled_s:g} s", RequestOutcome.ENGINE_ERROR)

    def _give_up(self, because: str) -> None:
        """The engine timed out. It may have started, so the request is refused and not retried."""
        assert self._attempt is not None
        self._attempt.stalled()
        self._drop_upstream()
        self._refuse(Refusal(Reason.ENGINE_TIMEOUT, f"the engine {because}"), RequestOutcome.TIMEOUT)

    def _expire(self) -> None:
        detail = "the request's deadline has passed"
        if self._state is STREAMING:
            self._cut(Reason.DEADLINE_PASSED, detail, RequestOutcome.TIMEOUT)
        elif self._state is not DONE:
            self._drop_upstream()
            self._refuse(Refusal(Reason.DEADLINE_PASSED, detail), RequestOutcome.TIMEOUT)

    # Handler

    def on_client_gone(self) -> None:
        """The client disconnected: cancel the request upstream."""
        if self._state is not DONE:
            outcome = _OK if self._state is TUNNEL else RequestOutcome.CANCELLED
            self._drop_upstream()
            self._settle(outcome)

    def on_client_writable(self, writable: bool) -> None:
        """Apply the client's back-pressure to the engine."""
        self._client_stalled = not writable
        # Before the response, the back-pressure belongs to an earlier response of the same connection.
        if self._upstream is not None and self._state is not AWAITING:
            if writable:
                self._upstream.resume_reading()
            else:
                self._upstream.pause_reading()

    def on_request_body(self, chunk: bytes) -> None:
        """Keep a part of a large body while it fits, and forward it if the request has been sent."""
        request, upstream = self._request, self._upstream
        bodies = self._client.listener.bodies
        if upstream is None or (not request.body_dropped and bodies.fits(request, chunk)):
            # Before the request is sent everything is kept. Reading pauses early enough for the rest of a read to fit.
            bodies.keep(request, chunk)
            if upstream is None and not bodies.has_room(len(chunk)):
                self._client.pause_reading()
        elif not request.body_dropped:
            bodies.drop(request)
        if upstream is not None:
            upstream.send_body(chunk)

    def on_request_end(self) -> None:
        """The request's body is complete."""
        if self._upstream is not None:
            self._sent_at = self._services.clock()
            self._upstream.end_request()

    def on_request_refused(self, refusal: Refusal) -> None:
        """The request is invalid: refuse it, unless its response has begun."""
        self._drop_upstream()
        if self._state is STREAMING:
            self._settle(RequestOutcome.CLIENT_ERROR)
            self._client.abort()
        else:
            self._refuse(refusal, RequestOutcome.CLIENT_ERROR)

    # ResponseSink

    def on_head(self, head: ResponseHead) -> None:
        """Hold the head, and detect a rejection."""
        self._head = head
        assert self._attempt is not None
        reason = self._attempt.on_head(head.status, head.by_name, head.headers)
        if reason is not None:
            self._enter(REJECTED)
            self._rejected_because, self._last_data_at = reason, self._services.clock()

    def on_body(self, chunk: bytes) -> None:
        """Forward a part of the body; the first part commits the exchange to its target."""
        if self._state is AWAITING:
            self._commit()
        if self._state is STREAMING:
            self._response.add(chunk)

    def on_pause(self) -> None:
        """Send what one read of the upstream connection has brought."""
        if self._response.flush() and self._client_stalled and self._upstream is not None:
            self._upstream.pause_reading()

    def on_end(self) -> None:
        """The response is complete."""
        upstream, self._upstream = self._upstream, None
        if self._state is REJECTED:
            self._after_rejection()
            return
        if self._state is AWAITING:
            self._commit()
        if self._state is STREAMING:
            self._finish(upstream.error_trailer if upstream is not None else b"")

    def on_broken(self, error: UpstreamError) -> None:
        """The connection closed before the response was complete."""
        self._upstream = None
        if self._state is TUNNEL:
            self._end_tunnel()
        elif self._state is REJECTED:
            self._after_rejection()
        else:
            self._lose(error)

    def on_writable(self, writable: bool) -> None:
        """Apply the engine's back-pressure to the client's upload, or to its side of a tunnel."""
        if writable:
            self._client.resume_reading()
        elif not self._request.whole or self._state is TUNNEL:
            self._client.pause_reading()
            if self._state is AWAITING:
                self._last_data_at = self._services.clock()

    def on_upgraded(self, headers: list[Header]) -> Tunnel:
        """The engine accepted the upgrade: inform the client, and forward bytes from here on."""
        attempt, upstream = self._attempt, self._upstream
        assert attempt is not None
        assert upstream is not None
        self._enter(TUNNEL)
        self._status = 101
        lines = [
            status_line(101),
            b"connection: upgrade\r\nupgrade: %b\r\n" % self._request.upgrade,
            *response_lines_to_client(headers, dict(headers), from_peer=attempt.from_peer),
            self._own_lines(attempt),
            b"\r\n",
        ]
        self._client.write(b"".join(lines))
        tunnel = self._tunnel = Tunnel(self._client, upstream, self._services.clock(), self._end_tunnel)
        self._client.tunnel_to(tunnel)
        return tunnel

    # the response

    def _commit(self) -> None:
        """Start the client's response: the exchange is bound to its target from here on."""
        attempt, request, head = self._attempt, self._request, self._head
        assert attempt is not None
        assert head is not None
        self._enter(STREAMING)
        self._status = head.status
        # No retry is possible, and the response may take minutes.
        request.body = b""
        listener = self._client.listener
        if request.kept_bytes:
            listener.bodies.drop(request)
        self._first_byte_at = self._last_data_at = now = self._services.clock()
        if self._context.estimate.streaming:
            attempt.on_first_byte(now)
        self._response.start(
            head,
            self._upstream,
            self._own_lines(attempt),
            from_peer=attempt.from_peer,
            http_1_0=request.http_1_0,
            may_keep_alive=request.keep_alive and request.whole and not request.upgrade and not listener.draining,
        )

    def _own_lines(self, attempt: Attempt) -> bytes:
        """The header lines with the request's ID, the region and endpoint that serve it, and a substituted model."""
        context, endpoint = self._context, attempt.endpoint_name
        lines = b"x-request-id: %b\r\n" % context.request_id.encode()
        if endpoint:
            # A peer's response has these lines already.
            lines += self._services.endpoint_headers[endpoint]
        if context.model != context.asked_for:
            lines += b"x-penstock-model: %b\r\n" % context.model.encode()
        return lines

    def _finish(self, error_trailer: bytes) -> None:
        """The client has the complete response; `error_trailer` is the reason where a peer had to end it early."""
        self._response.end()
        if error_trailer and self._attempt is not None and self._attempt.from_peer:
            late = error_trailer == Reason.DEADLINE_PASSED.encode()
            outcome = RequestOutcome.TIMEOUT if late else RequestOutcome.ENGINE_ERROR
        elif self._status < 400:
            outcome = _OK
        else:
            outcome = RequestOutcome.CLIENT_ERROR if self._status < 500 else RequestOutcome.ENGINE_ERROR
        self._settle(outcome)
        self._client.finished(keep_alive=self._response.keep_alive)

    def _cut(self, reason: Reason, detail: str, outcome: RequestOutcome) -> None:
        """End a response that failed: with an error event if it is an event stream, else by closing the connection."""
        self._drop_upstream()
        if self._response.end_with_error(reason, detail, to_peer=self._context.route_context is not None):
            self._settle(outcome)
            self._client.finished(keep_alive=False)
        else:
            self._settle(outcome)
            self._client.abort()

    def _refuse(self, refusal: Refusal, outcome: RequestOutcome = RequestOutcome.REFUSED) -> None:
        status, lines, body = refusal_response(refusal, self._services.rng)
        self._status, self._response.sent_bytes = status, len(body)
        self._settle(outcome)
        self._services.recorder.metrics.refused(refusal.reason)
        lines.append(b"x-request-id: %b\r\n" % self._context.request_id.encode())
        self._client.respond(status, lines, body)

    def _end_tunnel(self) -> None:
        """Both sides have finished, or one has disconnected."""
        if self._state is not DONE:
            if self._upstream is not None:
                self._upstream.close()
                self._upstream = None
            self._settle(_OK)
            self._client.finished(keep_alive=False)

    # the end

    def _drop_upstream(self) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

    def _settle(self, outcome: RequestOutcome) -> None:
        """Release everything that is held, then record the outcome. Takes effect once, on every path."""
        state = self._state
        if state is DONE:
            return
        services, context, attempt, response = self._services, self._context, self._attempt, self._response
        response.count_relayed()
        self._enter(DONE)
        # Everything is released before anything is recorded, so that a failure there cannot leak a slot.
        services.active.remove(self)
        now = services.clock()
        try:
            if self._queue_entry is not None:
                services.router.leave(self._queue_entry)
        finally:
            try:
                if attempt is not None:
                    measured = outcome is _OK and state is not TUNNEL
                    attempt.settle(now, now - self._sent_at if measured else None, response.tail)
            finally:
                if context.counted:
                    services.router.release_quota(context)
        tunnel = self._tunnel
        services.recorder.record(
            context,
            attempt,
            outcome,
            self._status,
            self._request.received_bytes if tunnel is None else tunnel.received_bytes,
            response.sent_bytes if tunnel is None else tunnel.sent_bytes,
            self._first_byte_at,
            now,
        )


_FAILURES: Final = frozenset({RetryReason.CONNECT_FAILED, RetryReason.CLOSED_EARLY})
