"""One proxied request as a state machine: select a target, send, stream the response, or try another target.

A response head is held until the first body byte: engines send the head before they start, and until the client has
received a byte the request can be retried elsewhere.
"""

from __future__ import annotations

from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcomes import RULES, Outcome, outcome_of_failure, outcome_of_refusal, outcome_of_status
from penstock.admission.queueing import MIN_RETRY_S, QueuedRequest
from penstock.answers.answer_errors import AnswerError, ErrorCause
from penstock.answers.usage_request import REFUSING_STATUSES, UsageFlag, ask_for_usage
from penstock.continuation.continuable_request import ContinuableRequest
from penstock.health.progress import Stall
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.headers.header_rules import Header
from regional_agent.http.messages import Request
from regional_agent.objects.object_ids import keep_client_object, keep_created_object
from regional_agent.proxy.answer_intake import HOLD_S, AnswerIntake, intake_of
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
from regional_agent.proxy.response_headers import upgrade_response_head
from regional_agent.proxy.stream_continuation import StreamContinuation, continuation_of, request_chunk_usage
from regional_agent.proxy.target_connection import TargetConnection
from regional_agent.proxy.target_selection import reads_while_queued, select_target
from regional_agent.proxy.upstream_request import ask_for_identity
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.admission_queue import QueueEntry
from regional_agent.routing.attempt import REASONS, Attempt, LocalAttempt
from regional_agent.routing.router import MAX_ATTEMPTS, MAX_BROKEN
from regional_agent.telemetry.outcomes import RetryReason
from regional_agent.telemetry.tracing.request_trace import SpanEvent
from regional_agent.upstream.response_head import ResponseHead
from regional_agent.upstream.upstream_sink import ConnectFailed, Stale, TimedOut, UpstreamError
from regional_agent.websocket.client_messages import ClientMessages, Violation
from regional_agent.websocket.tunnel import Tunnel
from regional_agent.websocket.websocket_frames import GOING_AWAY, POLICY_VIOLATION

MAX_CHECK_INTERVAL_S: Final = 3.0
"""Maximum time (s) between two checks of a stream: the progress of a stream shows that its endpoint is not stalled."""

REJECTION_READ_S: Final = 1.0
"""Maximum time (s) of reading the body of a rejection to reuse its connection; then the connection is closed."""

CHECKS_PER_STALL: Final = 20
"""Checks of a stream within the stall timeout. A stall is detected at most one interval between checks late."""

_USAGE_REFUSED: Final = Reason.BAD_REQUEST
_MODEL_MISSING: Final = Reason.MODEL_NOT_READY
_ERROR_STATUS: Final = Reason.UNREACHABLE
"""Why a target's response is read and dropped, besides the reasons of `Attempt.on_head`: the engine refused the flag
that the agent set; the engine lacks the model; the engine failed, and another endpoint may not."""

RETRIED_STATUSES: Final = frozenset({500, 502})
"""Statuses of engines that failed. Another engine would respond with the same 501 or 505; after 504 the engine may
still run the request; 503 is a rejection."""

_ERROR_RULES: Final = RULES[Outcome.ENGINE_ERROR]

_SELECTION, _QUEUE, _SENT, _STREAM = SpanEvent.SELECTION, SpanEvent.QUEUE, SpanEvent.SENT, SpanEvent.STREAM
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
        "_intake",
        "_lacking",
        "_left_error",
        "_queue_entry",
        "_rejected_because",
        "_request",
        "_response",
        "_services",
        "_state",
        "_status",
        "_target",
        "_tunnel",
        "_usage_flag",
        "_usage_was_refused",
        "_wants_id",
        "slot",
    )

    def __init__(
        self, services: ExchangeServices, client: ClientConnection, request: Request, context: RequestContext
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
        self._rejected_because = _SATURATED
        """Why the target rejected the request."""
        self._response = ClientResponse(client)
        self._status = 0
        self._continuable: ContinuableRequest | None = None
        """Set if the response may be a stream that another target could continue."""
        self._continuation: StreamContinuation | None = None
        """Set while a response is streamed that another target could continue."""
        self._intake: AnswerIntake | None = None
        """Reads the response; None if the response is not read."""
        self._left_error: AnswerError | None = None
        """The error in a response with status 200, because of which the request was sent elsewhere."""
        self._lacking: LocalAttempt | None = None
        """The attempt at an endpoint that responded as if it lacked the model."""
        self._usage_flag: UsageFlag | None = None
        """Set if the agent asks for the usage of the stream and the client does not."""
        self._usage_was_refused = False
        """Whether an engine refused the request with that flag."""
        self._wants_id = False
        """Whether the response creates an object whose identifier has not arrived yet."""
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
        self._context.note(_SELECTION, now)
        request = self._request
        if not request.whole:
            self._client.pause_reading()
        # A body with the flag of the agent, which a fallback model receives too, does not state what the client wants.
        if self._continuable is None and self._usage_flag is None and self._context.estimate.streaming:
            self._continuable = request_chunk_usage(self._context, request)
            if self._continuable is None and not self._usage_was_refused:
                self._ask_for_usage(now)
        target = select_target(self._services, self._context, request, self._on_turn, now)
        if isinstance(target, Refusal):
            if target.reason is Reason.NONE_READY and self._left_error is not None:
                target = Refusal(Reason.ENGINE_FAILED, f"the engine reported an error: {self._left_error.message}")
            self._refuse(target)
        elif isinstance(target, QueuedRequest):
            self._enter(QUEUED)
            if self._context.trace is not None:
                self._context.note(_QUEUE, self._services.clock())
            self._queue_entry = target
            if not request.whole and reads_while_queued(request, self._services.limits):
                self._client.resume_reading()
        else:
            self._go_to(target, now)

    def _ask_for_usage(self, now: float) -> None:
        """Ask the engine for the usage of the stream, if the client does not and the route has a flag for it."""
        request, route = self._request, self._request.route
        flag = self._services.answer_formats.of(route).request_flag
        if not flag or not request.whole or request.body_dropped or request.upgrade or request.http_1_0:
            return
        if not self._services.usage_requests.may_ask(self._context.model, now):
            return
        asked = ask_for_usage(request.body, flag)
        if asked is not None:
            request.body, self._usage_flag = asked
            request.length = len(request.body)
            ask_for_identity(request)

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
        elif self._services.router.requests.fall_back(self._context, self._request, target):
            self.select(now)
        else:
            self._refuse(target)

    # one attempt

    def _go_to(self, attempt: Attempt, now: float) -> None:
        self._attempt = attempt
        # The beginning of a response that an earlier attempt received must not be forwarded.
        self._head = self._intake = None
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
        self._context.note(_SENT, now)
        self._target.send(self._current, self, now)

    def _after_rejection(self) -> None:
        """Try another target after a rejection was read, unless a peer reports that its engine may have started."""
        attempt, reason = self._current, self._rejected_because
        if reason is _USAGE_REFUSED:
            self._send_unasked()
        elif reason is _ERROR_STATUS and isinstance(attempt, LocalAttempt):
            attempt.failed_first(self._context)
            self._retry(RetryReason.ENGINE_ERROR)
        elif reason is Reason.ENGINE_TIMEOUT:
            self._refuse(Refusal(reason, f"the engine in {attempt.region} did not begin in time"))
        else:
            attempt.rejected(self._context, reason, self._services.clock())
            self._retry(RetryReason.MODEL_MISSING if reason is _MODEL_MISSING else attempt.retry_reason)

    def _send_unasked(self) -> None:
        """Send the client's own request, after an engine refused it with a flag that the client did not set."""
        request, now = self._request, self._services.clock()
        assert self._usage_flag is not None
        request.body = self._usage_flag.removed_from(request.body)
        request.length = len(request.body)
        self._usage_flag, self._usage_was_refused = None, True
        self._current.settle(now)
        self._attempt = None
        self._context.attempt_failed(RetryReason.USAGE_REFUSED.value, now)
        self._services.recorder.metrics.retried(RetryReason.USAGE_REFUSED)
        self.select(now)

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
        services, now = self._services, self._services.clock()
        self._give_back(self._current, now)
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

    def _give_back(self, attempt: Attempt, now: float) -> None:
        """Settle an attempt that does not serve the request: its GPU time is overhead of the fleet."""
        if isinstance(attempt, LocalAttempt):
            usage = self._services.recorder.metrics.usage
            usage.overhead(attempt.estimate, now - attempt.since, attempt.mean_streams())
        attempt.settle(now)

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
        attempt, intake = self._current, self._intake
        if intake is not None and intake.held and self._may_forward_comments(intake, now):
            self._commit(intake.take_held())
            self.on_pause()
            return
        if self._request.whole:
            attempt.waits(now)
        if attempt.peer_failed():
            self._lose(TimedOut("the serving region has failed"))
        elif (stall := attempt.stall()) is not None and self._may_resend(stall, now):
            self._target.drop()
            attempt.moved_away(self._context)
            self._retry(RetryReason.ENDPOINT_SUSPECT)
        elif overdue := self._overdue(now):
            attempt.stalled()
            self._target.drop()
            self._refuse(Refusal(Reason.ENGINE_TIMEOUT, f"the engine {overdue}"))

    def _overdue(self, now: float) -> str:
        """Why the target is overdue; empty if it is not."""
        target, intake = self._target, self._intake
        if intake is not None and intake.held:
            idle_s = target.time_limits.idle_s
            return (
                f"sent a part of its response, and then nothing for {idle_s:g} s"
                if now - target.waits_since > idle_s
                else ""
            )
        return target.overdue(now)

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
        return self._services.router.reauthorization.refuse_model(self._context, model, self._current.region)

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

    def reauthorize(self) -> Refusal | None:
        """End the exchange if the policy in force no longer permits it; returns the reason if it does so."""
        attempt, services = self._attempt, self._services
        if self._state is DONE:
            return None
        refusal = services.router.reauthorization.reauthorize(
            self._context, attempt.region if attempt is not None else ""
        )
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
            outcome = Outcome.CLIENT_LEFT
            if self._state is TUNNEL or (self._state is STREAMING and self._has_whole_answer()):
                # Some clients close the connection at the end of the answer, before the end of the response.
                outcome = self._outcome_of_answer() if self._state is STREAMING else _OK
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
        self._head, self._intake = head, None
        attempt = self._current
        reason = attempt.on_head(head.status, head.by_name, head.headers)
        if self._usage_flag is not None and head.is_encoded_stream and self._may_send_again():
            # The event with the usage cannot be removed from an encoded stream.
            self._target.drop()
            self._send_unasked()
            return
        if reason is None and head.status >= 400:
            if self._usage_flag is not None and head.status in REFUSING_STATUSES:
                reason = _USAGE_REFUSED
            elif (
                isinstance(attempt, LocalAttempt)
                and not self._request.body_dropped
                and attempt.lacks_model(head.status, self._context)
            ):
                self._lacking, reason = attempt, _MODEL_MISSING
            elif self._leaves_status(head.status):
                reason = _ERROR_STATUS
        else:
            self._read_answer(head)
        if reason is not None:
            self._enter(REJECTED)
            self._rejected_because, self._target.waits_since = reason, self._services.clock()

    def on_body(self, chunk: bytes) -> None:
        """Forward a part of the body; the first part that is no error commits the exchange to its target."""
        intake = self._intake
        if self._state is STREAMING:
            if self._continuation is not None:
                self._add_events(self._continuation, chunk)
                return
            if intake is not None:
                chunk = intake.parser.feed(chunk)
                if self._wants_id:
                    self._keep_object(self._services.clock())
            if chunk:
                self._response.add(chunk)
        elif self._state is AWAITING:
            if intake is None:
                self._commit(chunk)
            elif not (intake.begin(chunk) or self._may_forward_comments(intake, self._services.clock())):
                self._target.waits_since = self._services.clock()
            elif intake.error is None or not self._leave(intake.error):
                self._commit(intake.take_held())

    def _may_forward_comments(self, intake: AnswerIntake, now: float) -> bool:
        """Whether comments, by which the engine keeps the stream open, are forwarded before the first event."""
        return intake.parser.between_records and now - self._target.sent_at > HOLD_S

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
        intake, rest = self._intake, b""
        if intake is not None and self._continuation is None:
            rest = intake.end()
            if self._state is AWAITING:
                if intake.error is not None and self._leave(intake.error):
                    return
                rest = intake.take_held() + rest
        if self._state is AWAITING:
            self._commit(rest)
        elif rest:
            self._response.add(rest)
        if self._wants_id:
            self._keep_object(self._services.clock())
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
                self._settle(self._outcome_of_answer())
            if trailer:
                self._response.cut()
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
            keep_client_object(self._context, attempt, services.router.requests.objects, services.clock())
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

    def _read_answer(self, head: ResponseHead) -> None:
        """Begin to read the response."""
        if self._continuation is not None:
            return
        hides, route = self._usage_flag is not None, self._request.route
        streaming = self._context.estimate.streaming
        formats = self._services.answer_formats
        self._intake = intake_of(formats, route, head, streaming=streaming, hides_usage=hides)

    def _may_send_again(self) -> bool:
        """Whether the client's request can be sent again after an engine may have started it."""
        request, route = self._request, self._request.route
        if not request.whole or request.body_dropped or request.upgrade or self._context.is_for_object:
            return False
        return route is None or route.repeatable

    def _may_retry(self, now: float) -> bool:
        """Whether the client's request can and may be sent again after an engine failed. `now` in s."""
        context = self._context
        if not _ERROR_RULES.may_retry or context.attempts >= MAX_ATTEMPTS or context.broken + 1 >= MAX_BROKEN:
            return False
        return self._may_send_again() and self._services.retry_budget.allows_one(now)

    def _leaves_status(self, status: int) -> bool:
        """Whether the request is sent to another endpoint, because the engine failed; else the client receives that."""
        attempt = self._current
        if status not in RETRIED_STATUSES or not isinstance(attempt, LocalAttempt):
            return False
        if not attempt.may_move(self._context) or not self._may_retry(self._services.clock()):
            return False
        self._left_error = AnswerError(ErrorCause.ENGINE, f"status {status}")
        return True

    def _leave(self, error: AnswerError) -> bool:
        """Send the request elsewhere, because its response is an error; False if the client receives the error."""
        attempt, context = self._current, self._context
        if error.cause is ErrorCause.REQUEST or not isinstance(attempt, LocalAttempt):
            return False
        attempt.erred(error)
        if not self._may_retry(self._services.clock()):
            return False
        self._left_error = error
        self._target.drop()
        if error.cause is ErrorCause.BUSY:
            attempt.rejected(context, _SATURATED, self._services.clock())
            self._retry(RetryReason.ENGINE_BUSY)
        else:
            attempt.failed_first(context)
            self._retry(RetryReason.ENGINE_ERROR)
        return True

    def _outcome_of_answer(self) -> Outcome:
        """The outcome of an answer that the client received as a whole; charges the endpoint for an error in it."""
        intake, continuation = self._intake, self._continuation
        error = intake.error if intake is not None else None
        if continuation is not None:
            error = continuation.stream.error
        if error is None:
            return outcome_of_status(self._status)
        self._current.erred(error)
        return Outcome.CLIENT_ERROR if error.cause is ErrorCause.REQUEST else Outcome.ENGINE_ERROR

    def _has_whole_answer(self) -> bool:
        """Whether the client, which has disconnected, has received the end of the answer."""
        if self._continuation is not None:
            return self._continuation.stream.done
        if self._intake is None:
            return False
        self._intake.parser.finish(complete=False)
        return self._intake.is_finished

    def _keep_object(self, now: float) -> None:
        """Record the location of the object that the response creates, once its identifier has arrived."""
        intake = self._intake
        if intake is not None and intake.parser.object_id:
            objects = self._services.router.requests.objects
            keep_created_object(self._context, self._current, intake.parser.object_id, objects, now)
            self._wants_id = False

    def _commit(self, chunk: bytes) -> None:
        """Start the client's response: the exchange is bound to its target from here on.

        Args:
            chunk: the first part of the body; empty without one.
        """
        attempt, request, head = self._current, self._request, self._head
        assert head is not None
        self._enter(STREAMING)
        self._target.waits_since = now = self._services.clock()
        upstream, streaming = self._target.upstream, self._context.estimate.streaming
        attempt.progressed(now)
        self._context.note(_STREAM, now)
        if streaming:
            attempt.on_first_byte(now)
        if self._continuation is not None:
            if refused := self._continuation.resume(head):
                self._refuse(refused)
            elif chunk:
                self._add_events(self._continuation, chunk)
            return
        self._status, self._first_byte_at = head.status, now
        if self._usage_was_refused and head.status < 300:
            self._services.usage_requests.refused(self._context.model, now)
        if streaming and self._context.route_context is None:
            self._response.gaps = self._services.recorder.metrics.sample_stream(self._context.model)
        if self._continuable is not None:
            self._continuation = continuation_of(self._services, self._context, request, head, self._continuable)
        if self._continuation is not None:
            # A stream that may be continued is not relayed, since relayed parts do not pass through `on_body`.
            upstream = self._intake = None
        else:
            # The body is freed, since no retry is possible and the response may take minutes.
            request.body = b""
            if request.kept_bytes:
                self._client.listener.bodies.drop(request)
        route = request.route
        if route is not None and (route.object_id or self._context.client_object):
            objects = self._services.router.requests.objects
            if self._context.client_object and 200 <= head.status < 300:
                keep_client_object(self._context, attempt, objects, now)
            if route.creates_objects and self._intake is not None:
                self._wants_id, upstream = True, None
                self._keep_object(now)
        lines = head.lines_to_client(attempt.address.host, attempt.base_path, from_peer=attempt.from_peer)
        lines += self._services.response_headers.lines(self._context, attempt.endpoint_name) + request.cors_lines
        self._response.start(head, upstream, lines, request, self._intake.parser if self._intake is not None else None)
        if chunk and self._continuation is not None:
            self._add_events(self._continuation, chunk)
        elif chunk:
            self._response.add(chunk)

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
        account = self._account(outcome, reason, now)
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
                    attempt.settle(now, service_s, account.measured_usage if outcome is _OK else None)
            finally:
                if context.counted:
                    services.router.requests.authorization.release_quota(context.facts.tenant)
        if outcome is _OK and self._lacking is not None and self._lacking is not attempt:
            self._lacking.charge_missing_model()
        services.recorder.record(context, attempt, account)
        if outcome is _REVOKED:
            services.recorder.metrics.revoked(state.name, reason)

    def _account(self, outcome: Outcome, reason: str, now: float) -> Account:
        """The account of the request, which ends at `now` (s)."""
        account = Account(outcome, reason, self._status, self._first_byte_at, now)
        tunnel, intake, estimate = self._tunnel, self._intake, self._context.estimate
        account.received_bytes = self._request.received_bytes if tunnel is None else tunnel.received_bytes
        account.sent_bytes = self._response.sent_bytes if tunnel is None else tunnel.sent_bytes
        if self._first_byte_at is None or not 200 <= self._status < 300:
            return account
        if self._continuation is not None:
            self._continuation.settle(account, estimate)
        elif intake is not None:
            intake.parser.finish(complete=outcome is _OK)
            intake.settle(account, estimate, complete=outcome is _OK)
        return account


_FAILURES: Final = frozenset(
    {
        RetryReason.CONNECT_FAILED,
        RetryReason.CLOSED_EARLY,
        RetryReason.CREDENTIAL_REJECTED,
        RetryReason.ENGINE_ERROR,
    }
)
