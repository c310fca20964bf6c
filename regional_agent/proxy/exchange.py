"""One proxied request as a state machine: select a target, send, stream the response, or try another target.

A response head is held until the first body byte: engines send the head before they start, and until the client has
received a byte the request can be retried elsewhere.
"""

from __future__ import annotations

from typing import Final

from penstock.accounts.outcomes import Outcome, outcome_of_failure, outcome_of_refusal, outcome_of_status
from penstock.admission.queueing import MIN_RETRY_S, QueuedRequest
from penstock.continuation.continuable_request import ContinuableRequest
from penstock.health.progress import Stall
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.usage import TAIL_BYTES
from regional_agent.http.header_rules import Header
from regional_agent.http.messages import Request
from regional_agent.http.request_sequence import RequestSequence
from regional_agent.http.websocket_frames import GOING_AWAY, POLICY_VIOLATION
from regional_agent.objects.object_ids import ObjectIdWatcher, keep_client_object, watch_object_id
from regional_agent.proxy.client_messages import ClientMessages, Violation
from regional_agent.proxy.client_response import ClientResponse
from regional_agent.proxy.error_responses import error_format_of, message_error, refusal_response
from regional_agent.proxy.exchange_services import ActiveExchange, ExchangeServices
from regional_agent.proxy.exchange_state import (
    AWAITING,
    CONNECTING,
    DONE,
    QUEUED,
    REJECTED,
    SELECTING,
    STREAMING,
    TUNNEL,
    InvalidTransition,
    State,
)
from regional_agent.proxy.hedge import Hedge, plan_hedge
from regional_agent.proxy.response_headers import upgrade_response_head
from regional_agent.proxy.stream_continuation import StreamContinuation, continuation_of, request_chunk_usage
from regional_agent.proxy.target_connection import TargetConnection
from regional_agent.proxy.target_selection import reads_while_queued, select_target
from regional_agent.proxy.tunnel import Tunnel
from regional_agent.routing.admission_queue import QueueEntry
from regional_agent.routing.attempt import REASONS, Attempt, LocalAttempt
from regional_agent.routing.request_context import RequestContext
from regional_agent.routing.router import MAX_ATTEMPTS, MAX_BROKEN
from regional_agent.telemetry.outcomes import RetryReason
from regional_agent.telemetry.tracing.request_trace import Phase
from regional_agent.upstream.response_head import ResponseHead
from regional_agent.upstream.upstream_sink import ConnectFailed, Stale, TimedOut, UpstreamError

MAX_CHECK_INTERVAL_S: Final = 3.0
"""Maximum time (s) between two checks of a stream: the progress of a stream shows that its endpoint is not stalled."""

NO_USAGE: Final[tuple[bytes, ...]] = ()
"""The usage parts of an incomplete response."""

REJECTION_READ_S: Final = 1.0
"""Maximum time (s) of reading the body of a rejection to reuse its connection; then the connection is closed."""

CHECKS_PER_STALL: Final = 20
"""Checks of a stream within the stall timeout. A stall is detected at most one interval between checks late."""

_SECOND_WON: Final = "second_attempt_won"
"""Reason with which the span of the first attempt ends when the second attempt wins."""

_SELECTION, _QUEUE, _SENT, _STREAM = Phase.SELECTION, Phase.QUEUE, Phase.SENT, Phase.STREAM
_OK, _REVOKED, _SATURATED = Outcome.OK, Outcome.REVOKED, Reason.SATURATED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


class Exchange:
    """Handles one client request; the sink of one upstream response at a time."""

    __slots__ = (
        "_attempt",
        "_client",
        "_client_stalled",
        "_context",
        "_continuable",
        "_continuation",
        "_first_byte_at",
        "_head",
        "_hedge",
        "_object_ids",
        "_queue_entry",
        "_rejected_because",
        "_request",
        "_response",
        "_services",
        "_state",
        "_status",
        "_target",
        "_tunnel",
        "_usage_start",
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
        self._queue_entry: QueueEntry | None = None
        self._attempt: Attempt | None = None
        """The current attempt, or the last one; it holds a reservation until it is settled."""
        self._target = TargetConnection(services, client, request, context)
        self._head: ResponseHead | None = None
        self._hedge: Hedge | None = None
        """The second attempt, planned or sent; None where the request is not hedged."""
        self._rejected_because = _SATURATED
        """Why the target rejected the request."""
        self._response = ClientResponse(client)
        self._status = 0
        self._continuable: ContinuableRequest | None = None
        """Set if the response may be a stream that another target could continue."""
        self._continuation: StreamContinuation | None = None
        """Set while a response is streamed that another target could continue."""
        self._object_ids: ObjectIdWatcher | None = None
        """Set until the identifier of the object that the response creates has arrived."""
        self._usage_start = b""
        """The first part of a stream that may report usage there, as Anthropic's do; empty for other streams."""
        self._first_byte_at: float | None = None
        self._client_stalled = False
        """Whether the client's write buffer is above its high-water mark."""
        self._tunnel: Tunnel | None = None
        self.slot: set[ActiveExchange] = set()
        """The slot of the timer wheel that contains the exchange; set by the wheel."""

    @property
    def model(self) -> str:
        """The requested model."""
        return self._context.model

    @property
    def tenant(self) -> str:
        """The owner of the request."""
        return self._context.facts.tenant

    @property
    def _current(self) -> Attempt:
        """The current attempt; only for states that have an attempt."""
        assert self._attempt is not None
        return self._attempt

    def _enter(self, state: State) -> None:
        if state not in self._state.successors:
            raise InvalidTransition(f"{self._state} -> {state}")
        self._state = state

    # selecting a target

    def select(self, now: float) -> None:
        """Select the next target and send the request there, or queue it; a refusal ends the exchange. `now` in s."""
        self._enter(SELECTING)
        self._context.begins(_SELECTION, now)
        request = self._request
        if not request.whole:
            self._client.pause_reading()
        if self._continuable is None and self._context.estimate.streaming:
            self._continuable = request_chunk_usage(self._context, request)
        target = select_target(self._services, self._context, request, self._on_turn, now)
        if isinstance(target, Refusal):
            self._refuse(target)
        elif isinstance(target, QueuedRequest):
            self._enter(QUEUED)
            if self._context.trace is not None:
                self._context.begins(_QUEUE, self._services.clock())
            self._queue_entry = target
            if not request.whole and reads_while_queued(request, self._services.limits):
                self._client.resume_reading()
        else:
            self._go_to(target, now)

    def _on_turn(self, target: Attempt | Refusal) -> None:
        """Process the target or the refusal that the admission queue returned."""
        now = self._services.clock()
        if self._state is not QUEUED:
            if not isinstance(target, Refusal):
                target.settle(now)
            return
        self._enter(SELECTING)
        if self._queue_entry is not None:
            self._context.queued_s += now - self._queue_entry.since
        self._queue_entry = None
        if not isinstance(target, Refusal):
            self._go_to(target, now)
        elif self._services.router.fall_back(self._context, self._request, target):
            self.select(now)
        else:
            self._refuse(target)

    # one attempt

    def _go_to(self, attempt: Attempt, now: float) -> None:
        self._attempt = attempt
        if self._context.trace is not None:
            now = self._trace_attempt(attempt)
        if self._target.take_idle(attempt):
            self._send(now)
        else:
            self._enter(CONNECTING)
            self._target.connect(attempt, self)

    def _trace_attempt(self, attempt: Attempt) -> float:
        now, trace, address = self._services.clock(), self._context.trace, attempt.address
        if trace is not None:
            trace.attempt(attempt.region, attempt.endpoint_name, attempt.kind, address.host, address.port, now)
        return now

    def _send(self, now: float) -> None:
        self._enter(AWAITING)
        self._context.begins(_SENT, now)
        self._target.send(self._current, self, now)
        route = self._request.route
        if route is not None and route.hedged and self._hedge is None:
            self._hedge = plan_hedge(self, self._services, self._client, self._request, self._context, now)

    def _after_rejection(self) -> None:
        """Try another target after a rejection was read, unless a peer reports that its engine may have started."""
        attempt, reason = self._current, self._rejected_because
        if reason is Reason.ENGINE_TIMEOUT:
            self._refuse(Refusal(reason, f"the engine in {attempt.region} did not begin in time"))
        else:
            attempt.rejected(self._context, reason, self._services.clock())
            self._retry(attempt.retry_reason)

    def _lose(self, error: UpstreamError) -> None:
        """Process a failed attempt: retry if the client has received nothing, else end the response with an error."""
        attempt = self._current
        if self._state is STREAMING:
            attempt.broke_off()
            self._fail_stream(Reason.ENGINE_FAILED, f"the stream broke off: {error}")
        elif isinstance(error, Stale) and self._target.may_reconnect():
            self._services.recorder.metrics.retried(RetryReason.STALE_CONNECTION)
            self._enter(CONNECTING)
            self._target.reconnect(attempt, self)
        else:
            self._target.drop()
            failed_connect = isinstance(error, ConnectFailed)
            attempt.unreachable(self._context, broke=not failed_connect)
            self._retry(RetryReason.CONNECT_FAILED if failed_connect else RetryReason.CLOSED_EARLY)

    def _retry(self, why: RetryReason) -> None:
        """Try another target, if the request can be sent again and the retry budget permits it."""
        if self._hedge is not None:
            if self._hedge.win():
                return
            self._hedge.cancel()
        services, now = self._services, self._services.clock()
        self._current.settle(now)
        self._attempt = None
        self._context.attempt_failed(why.value, now)
        if self._request.body_dropped:
            detail = f"{why.value}, and the body was not kept for a retry"
            self._refuse(Refusal(Reason.ENGINE_FAILED, detail))
        elif not services.retry_budget.withdraw(now):
            reason = Reason.ENGINE_FAILED if why in _FAILURES else _SATURATED
            detail = f"{why.value}, and the retry budget is used up"
            self._refuse(Refusal(reason, detail, retry_after_s=services.retry_budget.more_in_s(now)))
        else:
            services.recorder.metrics.retried(why)
            self.select(now)

    # the second attempt

    def waiting_attempt(self) -> LocalAttempt | None:
        """The attempt at an endpoint of this region that the request waits for; None in any other state."""
        attempt = self._attempt
        return attempt if self._state is AWAITING and isinstance(attempt, LocalAttempt) else None

    def take_over(self, attempt: LocalAttempt, target: TargetConnection, head: ResponseHead | None) -> None:
        """Cancel the first attempt, and continue with the second one, whose request has been sent."""
        self._enter(AWAITING)
        now = self._services.clock()
        self._target.drop()
        self._current.settle(now)
        self._attempt, self._target, self._head = attempt, target, head
        self._context.attempt_failed(_SECOND_WON, now)
        if self._context.trace is not None:
            self._trace_attempt(attempt)
            self._context.begins(_SENT, target.sent_at)

    # timeouts

    def check(self, now: float) -> float:
        """Enforce the deadline and the engine timeouts; returns when to check again (s)."""
        state, target = self._state, self._target
        if state is TUNNEL:
            self._check_tunnel(now)
        elif now > self._context.deadline_at:
            self._expire()
        elif state is AWAITING:
            self._check_awaiting(now)
        elif state is REJECTED:
            if now - target.waits_since > REJECTION_READ_S:
                target.drop()
                self._after_rejection()
        elif state is STREAMING:
            return self._check_streaming(now)
        return now

    def _check_awaiting(self, now: float) -> None:
        """Retry if the target failed or is suspect. Refuse if the target is overdue, since it may have started."""
        attempt = self._current
        if self._request.whole:
            attempt.waits(now)
        if attempt.peer_failed():
            self._lose(TimedOut("the serving region has failed"))
        elif (stall := attempt.stall()) is not None and self._may_resend(stall, now):
            self._target.drop()
            attempt.moved_away(self._context)
            self._retry(RetryReason.ENDPOINT_SUSPECT)
        elif overdue := self._target.overdue(now):
            attempt.stalled()
            self._target.drop()
            self._refuse(Refusal(Reason.ENGINE_TIMEOUT, f"the engine {overdue}"))

    def _may_resend(self, stall: Stall, now: float) -> bool:
        """Whether the request may leave its suspect target. Otherwise it stays, since the target may recover."""
        request, context, route = self._request, self._context, self._request.route
        return (
            stall.may_resend(repeatable=route is not None and route.repeatable and not request.upgrade)
            and not request.body_dropped
            and context.broken + 1 < MAX_BROKEN
            and context.attempts < MAX_ATTEMPTS
            and self._services.retry_budget.allows_one(now)
            and self._services.router.has_other_target(context, now)
        )

    def _check_streaming(self, now: float) -> float:
        """End a response that stopped arriving, unless the client does not read or its upload is incomplete."""
        response, target = self._response, self._target
        stall_timeout_s = target.time_limits.idle_s
        response.count_relayed()
        waits_for_client = self._client_stalled or not (self._request.whole or target.write_stalled)
        if response.has_news or waits_for_client:
            if response.has_news:
                self._current.progressed(now)
            response.has_news, target.waits_since = False, now
        elif now - target.waits_since > stall_timeout_s:
            self._current.stalled()
            self._fail_stream(Reason.STREAM_STALLED, f"no data for {stall_timeout_s:g} s")
        elif self._continuation is not None and self._current.peer_failed():
            self._fail_stream(Reason.ENGINE_FAILED, "the serving region has failed")
        elif self._leaves_suspect(now):
            self._fail_stream(Reason.STREAM_STALLED, "the endpoint makes no progress")
        else:
            self._current.waits_for_chunk(target.waits_since, now)
            return now
        return min(self._context.deadline_at, now + min(stall_timeout_s / CHECKS_PER_STALL, MAX_CHECK_INTERVAL_S))

    def _leaves_suspect(self, now: float) -> bool:
        """Whether a stream's endpoint has become suspect, and another target can continue the stream."""
        continuation = self._continuation
        return (
            continuation is not None
            and self._current.stall() is not None
            and continuation.is_possible
            and self._services.router.has_other_target(self._context, now)
        )

    def _check_tunnel(self, now: float) -> None:
        """End a tunnel that is idle or too old. Buffered data is dropped: a side that reads nothing would block it."""
        limits, tunnel = self._services.limits, self._tunnel
        if now - self._context.received_at > limits.max_tunnel_s:
            self._close_tunnel(_OK, Reason.DEADLINE_PASSED.value, GOING_AWAY, "the connection is too old")
        elif tunnel is not None and tunnel.idle_s(now) > limits.tunnel_idle_timeout_s:
            self._close_tunnel(_OK, "", GOING_AWAY, "the connection is idle")

    def _close_tunnel(self, outcome: Outcome, reason: str, code: int, detail: str) -> None:
        """End a tunnel, with a Close frame for the client if none of the engine's frames is incomplete."""
        closed = self._tunnel is not None and self._tunnel.close(code, detail)
        self._target.drop()
        self._settle(outcome, reason)
        if closed:
            self._client.finished(keep_alive=False)
        else:
            self._client.abort()

    def _on_violation(self, violation: Violation) -> None:
        """End a tunnel because of data that must not reach the engine."""
        if self._state is TUNNEL:
            reason = Reason.BAD_REQUEST
            self._services.recorder.metrics.refused(reason)
            self._close_tunnel(Outcome.CLIENT_ERROR, reason.value, violation.code, str(violation))

    def _refuse_model(self, model: str) -> Refusal | None:
        """Return why a message of the client may not name `model`; None if it may."""
        if model in (self._context.model, self._context.asked_for, self._context.estimate.adapter):
            return None
        return self._services.router.readmission.refuse_model(self._context, model, self._current.region)

    def _message_error(self, refusal: Refusal) -> bytes:
        """Return the message for the client that reports the refusal of one of its messages."""
        self._services.recorder.metrics.refused(refusal.reason)
        return message_error(refusal, error_format_of(self._request), self._context.request_id)

    def _expire(self) -> None:
        reason, detail = Reason.DEADLINE_PASSED, "the request's deadline has passed"
        if self._state is STREAMING:
            self._cut(reason, detail)
        elif self._state is not DONE:
            self._target.drop()
            self._refuse(Refusal(reason, detail))

    # shutdown

    def shut_down(self) -> None:
        """End the exchange because the agent stops."""
        state, request, route = self._state, self._request, self._request.route
        reason, detail = Reason.SHUTTING_DOWN, "the agent stops"
        if state is STREAMING:
            self._cut(reason, detail)
        elif state is TUNNEL:
            self._close_tunnel(Outcome.SHUTDOWN, reason.value, GOING_AWAY, detail)
        elif state is not DONE:
            if state is AWAITING and (request.upgrade or (route is not None and not route.repeatable)):
                reason, detail = Reason.ENGINE_TIMEOUT, "the agent stops, and the engine may have begun"
            self._target.drop()
            self._refuse(Refusal(reason, detail, retry_after_s=MIN_RETRY_S), Outcome.SHUTDOWN)

    # changes of policy

    def readmit(self) -> Refusal | None:
        """End the exchange if the policy in force no longer permits it; returns the reason if it does so."""
        attempt, services = self._attempt, self._services
        if self._state is DONE:
            return None
        refusal = services.router.readmission.readmit(self._context, attempt.region if attempt is not None else "")
        if refusal is None:
            return None
        if self._state is STREAMING:
            self._cut(refusal.reason, refusal.detail)
        elif self._state is TUNNEL:
            self._close_tunnel(_REVOKED, refusal.reason.value, POLICY_VIOLATION, refusal.detail)
        else:
            self._target.drop()
            self._refuse(refusal)
        return refusal

    # Handler

    def on_client_gone(self) -> None:
        """The client disconnected: cancel the request upstream."""
        if self._state is not DONE:
            outcome = _OK if self._state is TUNNEL else Outcome.CLIENT_LEFT
            self._target.drop()
            self._settle(outcome)

    def on_client_writable(self, writable: bool) -> None:
        """Apply the client's back-pressure to the engine."""
        self._client_stalled = not writable
        # Before the response, the back-pressure belongs to an earlier response of the same connection.
        if self._state is not AWAITING:
            self._target.set_reading(writable)

    def on_request_body(self, chunk: bytes) -> None:
        """Keep and forward a further part of a large body."""
        self._target.send_body(chunk)

    def on_request_end(self) -> None:
        """End the request's body at the target."""
        self._target.end_body()

    def on_request_refused(self, refusal: Refusal) -> None:
        """Refuse the request, unless its response has begun."""
        self._target.drop()
        if self._state is STREAMING:
            self._settle(Outcome.CLIENT_ERROR)
            self._client.abort()
        else:
            self._refuse(refusal, None if refusal.reason is _SATURATED else Outcome.CLIENT_ERROR)

    def drop_body(self) -> bool:
        """Drop the kept body if it has been sent; the request cannot be sent again. False if the body is needed."""
        continuation = self._continuation
        if continuation is not None and self._state is STREAMING:
            continuation.forget_body()
        elif self._state is not AWAITING:
            return False
        self._client.listener.bodies.drop(self._request)
        return True

    # TargetSink

    def on_connected(self) -> None:
        """Send the request over the new connection."""
        self._send(self._services.clock())

    def on_head(self, head: ResponseHead) -> None:
        """Hold the head, and detect a rejection."""
        self._head = head
        reason = self._current.on_head(head.status, head.by_name, head.headers)
        if reason is not None:
            self._enter(REJECTED)
            self._rejected_because, self._target.waits_since = reason, self._services.clock()

    def on_body(self, chunk: bytes) -> None:
        """Forward a part of the body; the first part commits the exchange to its target."""
        if self._state is AWAITING:
            self._commit(chunk)
        elif self._object_ids is not None and not self._object_ids.feed(chunk, self._services.clock()):
            self._object_ids = None
        if self._state is STREAMING:
            if self._continuation is None:
                self._response.add(chunk)
            else:
                self._add_events(self._continuation, chunk)

    def on_pause(self) -> None:
        """Write the data of one read of the upstream connection to the client."""
        if self._response.flush() and self._client_stalled:
            self._target.set_reading(False)

    def on_end(self) -> None:
        """Complete the client's response, or try another target after a rejection."""
        upstream = self._target.detach()
        if self._state is REJECTED:
            self._after_rejection()
            return
        if self._state is AWAITING:
            self._commit()
        if self._state is STREAMING and self._continuation is not None:
            self._add_events(self._continuation, None)
        if self._state is STREAMING:
            # A peer that has to end a response early reports the reason in a trailer.
            trailer = upstream.error_trailer if upstream is not None and self._current.from_peer else b""
            self._response.end()
            if trailer:
                reason = REASONS.get(trailer, Reason.ENGINE_FAILED)
                self._settle(self._outcome_of_failure(reason), reason.value)
            else:
                self._settle(outcome_of_status(self._status))
            if trailer and self._response.ends_at_close:
                self._client.abort()
            else:
                self._client.finished(keep_alive=self._response.keep_alive)

    def on_broken(self, error: UpstreamError) -> None:
        """Process a failure to connect, or a connection that closed before the response was complete."""
        self._target.detach()
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
                self._target.waits_since = self._services.clock()

    def on_upgraded(self, headers: list[Header]) -> Tunnel:
        """Send the engine's acceptance of the upgrade to the client, and forward bytes from here on."""
        attempt, upstream, services = self._current, self._target.upstream, self._services
        assert upstream is not None
        self._enter(TUNNEL)
        self._status = 101
        if self._context.client_object:
            keep_client_object(self._context, attempt, services.router.admission.objects, services.clock())
        lines = services.response_headers.lines(self._context, attempt.endpoint_name)
        head = upgrade_response_head(self._request, headers, lines, attempt)
        self._client.write(head)
        tunnel = self._tunnel = Tunnel(self._client, upstream, services.clock(), self._end_tunnel)
        route = self._request.route
        if route is not None and route.message_model and self._context.route_context is None:
            messages = ClientMessages(route.message_model, self._refuse_model)
            tunnel.read_messages(messages, self._message_error, self._on_violation)
        self._client.tunnel_to(tunnel)
        return tunnel

    # the response

    def _commit(self, chunk: bytes = b"") -> None:
        """Start the client's response: the exchange is bound to its target from here on.

        Args:
            chunk: the first part of the body, which the caller adds to the response.
        """
        attempt, request, head = self._current, self._request, self._head
        assert head is not None
        self._enter(STREAMING)
        if self._hedge is not None:
            self._hedge.cancel()
        self._target.waits_since = now = self._services.clock()
        upstream, streaming = self._target.upstream, self._context.estimate.streaming
        attempt.progressed(now)
        self._context.begins(_STREAM, now)
        if streaming:
            attempt.on_first_byte(now)
        if self._continuation is not None:
            if refused := self._continuation.resume(head):
                self._refuse(refused)
            return
        self._status, self._first_byte_at = head.status, now
        if streaming and self._context.estimate.usage_fields is not None:
            self._usage_start = chunk[:TAIL_BYTES]
        if streaming and self._context.route_context is None:
            self._response.gaps = self._services.recorder.metrics.sample_stream(self._context.model)
        if self._continuable is not None:
            self._continuation = continuation_of(self._services, self._context, request, head, self._continuable)
        if self._continuation is not None:
            # A stream that may be continued is not relayed, since relayed parts do not pass through `on_body`.
            upstream = None
        else:
            # The body is freed, since no retry is possible and the response may take minutes.
            request.body = b""
            if request.kept_bytes:
                self._client.listener.bodies.drop(request)
        route = request.route
        if route is not None and (route.object_id or self._context.client_object):
            objects = self._services.router.admission.objects
            if self._context.client_object and 200 <= head.status < 300:
                keep_client_object(self._context, attempt, objects, now)
            watcher = watch_object_id(self._context, attempt, head, objects)
            if watcher is not None and watcher.feed(chunk, now):
                self._object_ids, upstream = watcher, None
        lines = head.lines_to_client(attempt.address.host, attempt.base_path, from_peer=attempt.from_peer)
        lines += self._services.response_headers.lines(self._context, attempt.endpoint_name) + request.cors_lines
        self._response.start(head, upstream, lines, request)

    def _add_events(self, continuation: StreamContinuation, chunk: bytes | None) -> None:
        """Forward the complete events of a stream; `chunk` is None at the end of the stream."""
        response, stream = self._response, continuation.stream
        response.has_news = True
        if events := stream.end() if chunk is None else stream.feed(chunk):
            response.add(events)
        if stream.failure:
            self._current.broke_off()
            self._fail_stream(Reason.ENGINE_FAILED, f"the stream broke off: {stream.failure}")

    def _fail_stream(self, reason: Reason, detail: str) -> None:
        """Continue a failed response at another target if possible, else end it with an error."""
        continuation, response, now = self._continuation, self._response, self._services.clock()
        self._target.drop()
        if continuation is None:
            self._cut(reason, detail)
        elif not continuation.prepare(self._current, Refusal(reason, detail), now):
            self._cut(reason, continuation.detail)
        elif continuation.end is not None:
            if continuation.end:
                response.add(continuation.end)
            response.end()
            self._settle(_OK)
            self._client.finished(keep_alive=response.keep_alive)
        else:
            response.flush()
            self._current.settle(now)
            self._attempt = None
            self._context.attempt_failed(reason.value, now)
            self.select(now)

    def _cut(self, reason: Reason, detail: str) -> None:
        """End a response that failed: with an error event if it is an event stream, else by closing the connection."""
        self._target.drop()
        ended = self._response.end_with_error(
            reason,
            detail,
            error_format_of(self._request),
            self._context.request_id,
            to_peer=self._context.route_context is not None,
        )
        self._settle(self._outcome_of_failure(reason), reason.value)
        if ended:
            self._client.finished(keep_alive=False)
        else:
            self._client.abort()

    def _outcome_of_failure(self, reason: Reason) -> Outcome:
        return outcome_of_failure(reason, own_deadline=self._context.own_deadline)

    def _refuse(self, refusal: Refusal, outcome: Outcome | None = None) -> None:
        """Respond with a refusal, or end a response that has begun; `outcome` None is derived from the reason."""
        if self._continuation is not None:
            self._cut(*self._continuation.failed(refusal))
            return
        request_id = self._context.request_id
        status, lines, body = refusal_response(refusal, self._services.rng, error_format_of(self._request), request_id)
        self._status, self._response.sent_bytes = status, len(body)
        if outcome is None:
            outcome = outcome_of_refusal(refusal.reason, own_deadline=self._context.own_deadline)
        self._settle(outcome, refusal.reason.value)
        self._services.recorder.metrics.refused(refusal.reason)
        self._client.respond(status, lines, body)

    def _end_tunnel(self) -> None:
        """End the tunnel after both sides have half-closed, or one side has disconnected."""
        if self._state is not DONE:
            upstream = self._target.detach()
            if upstream is not None:
                upstream.close()
            self._settle(_OK)
            self._client.finished(keep_alive=False)

    def _settle(self, outcome: Outcome, reason: str = "") -> None:
        """Release the queue entry, the reservations and the quota, then record the outcome. Only the first call counts.

        Args:
            reason: why the request was refused or its response ended early; empty otherwise.
        """
        state = self._state
        if state is DONE:
            return
        services, context, attempt, response = self._services, self._context, self._attempt, self._response
        response.count_relayed()
        self._enter(DONE)
        # All resources are released before the outcome is recorded, so that a failed recording cannot leak a slot.
        services.active.remove(self)
        now = services.clock()
        usage_parts = self._usage_parts() if outcome is _OK else NO_USAGE
        try:
            if self._queue_entry is not None:
                context.queued_s += now - self._queue_entry.since
                services.router.leave(self._queue_entry)
        finally:
            try:
                if attempt is not None:
                    measured = outcome is _OK and state is not TUNNEL and not context.continuations
                    if self._continuation is not None and self._continuation.end is not None:
                        measured = False  # the stream stalled or broke off after the answer was complete
                    service_s = now - self._target.sent_at if measured else None
                    attempt.settle(now, service_s, usage_parts)
            finally:
                try:
                    if self._hedge is not None:
                        self._hedge.close(now, completed=outcome is _OK)
                finally:
                    if context.counted:
                        services.router.release_quota(context)
        tunnel = self._tunnel
        received_bytes = self._request.received_bytes if tunnel is None else tunnel.received_bytes
        sent_bytes = response.sent_bytes if tunnel is None else tunnel.sent_bytes
        services.recorder.record(
            context,
            attempt,
            outcome,
            self._status,
            received_bytes,
            sent_bytes,
            self._first_byte_at,
            now,
            reason,
            usage_parts,
        )
        if outcome is _REVOKED:
            services.recorder.metrics.revoked(state.name, reason)

    def _usage_parts(self) -> tuple[bytes, ...]:
        """The parts of a complete response that report its usage, including usage that the client did not request."""
        if self._continuation is not None:
            return (self._continuation.stream.usage_event,)
        tail = self._response.tail
        return (self._usage_start, b"\n", *tail) if self._usage_start else tail


_FAILURES: Final = frozenset({RetryReason.CONNECT_FAILED, RetryReason.CLOSED_EARLY, RetryReason.CREDENTIAL_REJECTED})
