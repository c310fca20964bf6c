"""One proxied request as a state machine: select a target, send, stream the response, or try another target.

A response head is held until the first body byte: engines send the head before they start, and until the client has
received a byte the request can be retried elsewhere. From then on the response (`relayed_response.py`) decides.
"""

from __future__ import annotations

from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcomes import Outcome, outcome_of_refusal
from penstock.admission.retry_after import MIN_RETRY_S
from penstock.admission.tenant_order import QueuedRequest
from penstock.answers.answer_errors import AnswerError
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.headers.header_rules import Header
from regional_agent.proxy.answer_intake import AnswerIntake, intake_of
from regional_agent.proxy.continued_response import ContinuedResponse, is_continuable
from regional_agent.proxy.error_responses import error_format_of, refusal_response
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
from regional_agent.proxy.policy_enforcer import ActiveExchange
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.relayed_response import RelayedResponse
from regional_agent.proxy.release import release_request
from regional_agent.proxy.retries import (
    MODEL_MISSING,
    USAGE_REFUSED,
    after_error,
    after_rejection,
    refuse_retry,
    rejection_of,
    while_awaiting,
)
from regional_agent.proxy.stream_usage import StreamUsage
from regional_agent.proxy.target_connection import TargetConnection
from regional_agent.proxy.target_selection import reads_while_queued, select_target
from regional_agent.proxy.tunnel_response import TunnelResponse
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.routing.queue_dispatcher import QueueEntry
from regional_agent.telemetry.outcomes import RetryReason
from regional_agent.telemetry.tracing.request_trace import SpanEvent
from regional_agent.upstream.response_head import ResponseHead
from regional_agent.upstream.upstream_sink import ConnectFailed, Stale, UpstreamError
from regional_agent.websocket.tunnel import Tunnel

DECISIONS_PER_SAMPLE: Final = 32
"""Number of requests for each measured decision time."""

REJECTION_READ_S: Final = 1.0
"""Maximum time (s) of reading the body of a rejection to reuse its connection; then the connection is closed."""

_SELECTION, _QUEUE, _SENT, _STREAM = SpanEvent.SELECTION, SpanEvent.QUEUE, SpanEvent.SENT, SpanEvent.STREAM
_OK, _REVOKED, _SATURATED = Outcome.OK, Outcome.REVOKED, Reason.SATURATED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


def start_exchange(proxy: Proxy, client: ClientConnection, context: RequestContext) -> Exchange:
    """Start the exchange of a request."""
    tracer = proxy.recorder.tracer
    if tracer is not None:
        tracer.begin(context, trusted=client.trusted, now=proxy.clock())
    exchange = Exchange(proxy, client, context)
    proxy.active.add(exchange)
    proxy.retry_budget.request(context.received_at)
    try:
        exchange.select(context.received_at)
    except BaseException:
        # The client connection closes without the exchange as its handler, so it must be ended here.
        exchange.on_client_gone()
        raise
    proxy.until_measured -= 1
    if not proxy.until_measured:
        proxy.until_measured = DECISIONS_PER_SAMPLE
        proxy.metrics.decided(proxy.clock() - context.received_at)
    return exchange


class Exchange:
    """Handles one client request; the sink of one upstream response at a time."""

    __slots__ = (
        "_attempt",
        "_client",
        "_client_stalled",
        "_context",
        "_head",
        "_intake",
        "_lacking",
        "_proxy",
        "_queue_entry",
        "_rejected_because",
        "_response",
        "_state",
        "_target",
        "_usage",
        "slot",
    )

    def __init__(self, proxy: Proxy, client: ClientConnection, context: RequestContext) -> None:
        self._proxy = proxy
        self._client = client
        self._context = context
        self._state = SELECTING
        self._queue_entry: QueueEntry | None = None
        self._attempt: Attempt | None = None
        """The current attempt, or the last one; it holds a reservation until it is settled."""
        self._target = TargetConnection(proxy, client, context)
        self._head: ResponseHead | None = None
        self._intake: AnswerIntake | None = None
        """Reads the response of the current attempt; None if the response is not read."""
        self._rejected_because = _SATURATED
        """Why the target rejected the request."""
        self._response: RelayedResponse | ContinuedResponse | TunnelResponse | None = None
        """The response that the client receives; None before its first byte."""
        self._usage: StreamUsage | None = None
        """What the agent asks the engine to report; None if the response is no stream."""
        self._lacking: LocalAttempt | None = None
        """The attempt at an endpoint that responded as if it lacked the model."""
        self._client_stalled = False
        """Whether the client's write buffer is above its high-water mark."""
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
        proxy, context = self._proxy, self._context
        context.note(_SELECTION, now)
        if not context.request.whole:
            self._client.pause_reading()
        if context.estimate.streaming:
            if self._usage is None:
                self._usage = StreamUsage()
            self._usage.ask(proxy, context, now)
        target = select_target(proxy, context, self._on_turn, now)
        if isinstance(target, Refusal):
            self._refuse(target)
        elif isinstance(target, QueuedRequest):
            self._enter(QUEUED)
            if context.trace is not None:
                context.note(_QUEUE, proxy.clock())
            self._queue_entry = target
            if not context.request.whole and reads_while_queued(proxy, context):
                self._client.resume_reading()
        else:
            self._go_to(target, now)

    def _on_turn(self, target: Attempt | Refusal) -> None:
        """Process the target or the refusal that the admission queue returned."""
        now = self._proxy.clock()
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
        elif self._proxy.router.requests.fall_back(self._context, self._context.request, target):
            self.select(now)
        else:
            self._refuse(target)

    # one attempt

    def _go_to(self, attempt: Attempt, now: float) -> None:
        self._attempt = attempt
        # The beginning of a response that an earlier attempt received must not be forwarded.
        self._head = self._intake = None
        trace, address = self._context.trace, attempt.address
        if trace is not None:
            now = self._proxy.clock()
            trace.attempt(attempt.region, attempt.endpoint_name, attempt.kind, address.host, address.port, now)
        if self._target.take_idle(attempt):
            self._send(now)
        else:
            self._enter(CONNECTING)
            self._target.connect(attempt, self)

    def _send(self, now: float) -> None:
        self._enter(AWAITING)
        self._context.note(_SENT, now)
        self._target.send(self._current, self, now)

    def _after_rejection(self) -> None:
        """Continue after a rejection was read."""
        attempt, reason, now = self._current, self._rejected_because, self._proxy.clock()
        if reason is USAGE_REFUSED and self._usage is not None:
            self._usage.withdraw(self._context)
            self._proxy.metrics.retried(RetryReason.USAGE_REFUSED)
            self._release_attempt(RetryReason.USAGE_REFUSED.value, now)
            self.select(now)
            return
        following = after_rejection(self._context, attempt, reason, now)
        if isinstance(following, Refusal):
            self._refuse(following)
            return
        if reason is MODEL_MISSING and isinstance(attempt, LocalAttempt):
            self._lacking = attempt
        self._retry(following)

    def _lose(self, error: UpstreamError) -> None:
        """Process a failed attempt: retry if the client has received nothing, else end the response with an error."""
        attempt = self._current
        if self._state is STREAMING:
            attempt.broke_off()
            self._fail(Refusal(Reason.ENGINE_FAILED, f"the stream broke off: {error}"))
        elif isinstance(error, Stale) and self._target.may_reconnect():
            self._proxy.metrics.retried(RetryReason.STALE_CONNECTION)
            self._enter(CONNECTING)
            self._target.reconnect(attempt, self)
        else:
            failed_connect = isinstance(error, ConnectFailed)
            attempt.unreachable(self._context, broke=not failed_connect)
            self._retry(RetryReason.CONNECT_FAILED if failed_connect else RetryReason.CLOSED_EARLY)

    def _leave(self, error: AnswerError) -> bool:
        """Send the request elsewhere, because its response is an error; False if the client receives the error."""
        why = after_error(self._proxy, self._context, self._current, error, self._proxy.clock())
        if why is not None:
            self._retry(why)
        return why is not None

    def _retry(self, why: RetryReason) -> None:
        """Try another target, if the request can be sent again and the retry budget permits it."""
        proxy, now = self._proxy, self._proxy.clock()
        self._target.drop()
        proxy.recorder.attempt_lost(self._current, now)
        self._release_attempt(why.value, now)
        refusal = refuse_retry(proxy, self._context, why, now)
        if refusal is not None:
            self._refuse(refusal)
        else:
            proxy.metrics.retried(why)
            self.select(now)

    def _release_attempt(self, why: str, now: float) -> None:
        """Release the current attempt, after which the request continues because of `why`."""
        self._current.settle(now)
        self._attempt = None
        self._context.attempt_failed(why, now)

    # timeouts

    def check(self, now: float) -> float:
        """Enforce the deadline and the engine timeouts; returns when to check again (s)."""
        state, target, response = self._state, self._target, self._response
        if state is not TUNNEL and now > self._context.deadline_at:
            self._end(Refusal(Reason.DEADLINE_PASSED, "the request's deadline has passed"))
        elif state is AWAITING:
            self._check_awaiting(now)
        elif state is REJECTED:
            if now - target.waits_since > REJECTION_READ_S:
                target.drop()
                self._after_rejection()
        elif response is not None and (state is STREAMING or state is TUNNEL):
            due = response.check(target, now, waits_for_client=self._client_stalled)
            if not isinstance(due, Refusal):
                return min(self._context.deadline_at, due)
            self._fail(due)
        return now

    def _check_awaiting(self, now: float) -> None:
        """Retry if the target failed or is suspect. Refuse if the target is overdue, since it may have started."""
        intake, target = self._intake, self._target
        if intake is not None and intake.held and intake.forwards_comments(target.sent_at, now):
            self._begin(intake.take_held())
            self.on_pause()
            return
        following = while_awaiting(self._proxy, self._context, self._current, target, intake, now)
        if isinstance(following, Refusal):
            self._end(following)
        elif following is not None:
            self._retry(following)

    # ends that the agent decides

    def shut_down(self) -> None:
        """End the exchange because the agent stops."""
        reason, detail = Reason.SHUTTING_DOWN, "the agent stops"
        if self._state is AWAITING and not self._context.is_repeatable:
            reason, detail = Reason.ENGINE_TIMEOUT, "the agent stops, and the engine may have begun"
        self._end(Refusal(reason, detail, retry_after_s=MIN_RETRY_S), Outcome.SHUTDOWN)

    def reauthorize(self) -> Refusal | None:
        """End the exchange if the policy in force no longer permits it; returns the reason if it does so."""
        attempt = self._attempt
        if self._state is DONE:
            return None
        region = attempt.region if attempt is not None else ""
        refusal = self._proxy.router.reauthorization.reauthorize(self._context, region)
        if refusal is not None:
            self._end(refusal)
        return refusal

    def _end(self, refusal: Refusal, outcome: Outcome | None = None) -> None:
        """Refuse the request, or cut its response; `outcome` of a refusal, None to derive it from the reason."""
        if self._state is STREAMING or self._state is TUNNEL:
            self._cut(refusal)
        elif self._state is not DONE:
            self._target.drop()
            self._refuse(refusal, outcome)

    # RequestHandler

    def on_client_gone(self) -> None:
        """The client disconnected: cancel the request upstream."""
        if self._state is not DONE:
            began = self._response if self._state is STREAMING or self._state is TUNNEL else None
            outcome = Outcome.CLIENT_LEFT if began is None else began.outcome_without_client()
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
        response = self._response if self._state is STREAMING else None
        if self._state is not AWAITING and (response is None or not response.drop_body()):
            return False
        self._client.listener.bodies.drop(self._context.request)
        return True

    # TargetSink

    def on_connected(self) -> None:
        """Send the request over the new connection."""
        self._send(self._proxy.clock())

    def on_head(self, head: ResponseHead) -> None:
        """Hold the head, and detect a rejection."""
        self._head, self._intake = head, None
        proxy, context, usage = self._proxy, self._context, self._usage
        reason = rejection_of(proxy, context, self._current, usage, head)
        if reason is not None:
            self._enter(REJECTED)
            self._rejected_because, self._target.waits_since = reason, proxy.clock()
            if head.status < 400:
                # The response may have no end.
                self._target.drop()
                self._after_rejection()
        elif self._response is None:
            hides_usage, streaming = usage is not None and usage.is_hidden, context.estimate.streaming
            formats, route = proxy.answer_formats, context.request.route
            self._intake = intake_of(formats, route, head, streaming=streaming, hides_usage=hides_usage)

    def on_body(self, chunk: bytes) -> None:
        """Forward a part of the body; the first part that is no error binds the exchange to its target."""
        intake, response = self._intake, self._response
        if self._state is STREAMING:
            if response is not None and (failure := response.on_body(chunk)) is not None:
                self._fail(failure)
        elif self._state is AWAITING:
            if intake is None:
                self._begin(chunk)
            elif not (intake.begin(chunk) or intake.forwards_comments(self._target.sent_at, self._proxy.clock())):
                self._target.waits_since = self._proxy.clock()
            elif intake.error is None or not self._leave(intake.error):
                self._begin(intake.take_held())

    def on_pause(self) -> None:
        """Write the data of one read of the upstream connection to the client."""
        if self._response is not None and self._response.on_pause() and self._client_stalled:
            self._target.set_reading(False)

    def on_end(self) -> None:
        """Complete the client's response, or try another target after a rejection."""
        upstream = self._target.detach()
        if self._state is REJECTED:
            self._after_rejection()
            return
        if self._state is AWAITING:
            intake, rest = self._intake, b""
            if intake is not None:
                rest = intake.end()
                if intake.error is not None and self._leave(intake.error):
                    return
                rest = intake.take_held() + rest
            self._begin(rest)
        response = self._response
        if response is not None and (self._state is STREAMING or self._state is TUNNEL):
            failure = response.on_end(upstream)
            if failure is None:
                self._complete(response.outcome())
            else:
                self._fail(failure)

    def on_broken(self, error: UpstreamError) -> None:
        """Process a failure to connect, or a connection that closed before the response was complete."""
        if self._state is TUNNEL or self._state is REJECTED:
            self.on_end()
        else:
            self._target.detach()
            self._lose(error)

    def on_writable(self, writable: bool) -> None:
        """Apply the engine's back-pressure to the client's upload, or to its side of a tunnel."""
        if writable:
            self._client.resume_reading()
        elif not self._context.request.whole or self._state is TUNNEL:
            self._client.pause_reading()
            if self._state is AWAITING:
                self._target.waits_since = self._proxy.clock()

    def on_upgraded(self, headers: list[Header]) -> Tunnel:
        """Send the engine's acceptance of the upgrade to the client, and forward bytes from here on."""
        upstream = self._target.upstream
        assert upstream is not None
        self._enter(TUNNEL)
        response = TunnelResponse(
            self._proxy, self._client, self._context, self._current, upstream, self._on_tunnel_end
        )
        self._response = response
        response.accept(headers)
        return response.tunnel

    def _on_tunnel_end(self, failure: Refusal | None) -> None:
        if self._state is TUNNEL:
            if failure is None:
                self.on_end()
            else:
                self._cut(failure)

    # the response

    def _begin(self, chunk: bytes) -> None:
        """Begin or continue the client's response; `chunk` is the first part of the body, empty without one."""
        attempt, head, target, context = self._current, self._head, self._target, self._context
        assert head is not None
        self._enter(STREAMING)
        target.waits_since = now = self._proxy.clock()
        attempt.progressed(now)
        context.note(_STREAM, now)
        if context.estimate.streaming:
            attempt.on_first_byte(now)
        response = self._response
        if response is None:
            response = self._response = self._new_response(head, now)
        failure = response.begin(head, attempt, target.upstream, chunk)
        if failure is not None:
            self._fail(failure)

    def _new_response(self, head: ResponseHead, now: float) -> RelayedResponse | ContinuedResponse:
        proxy, client, context, usage = self._proxy, self._client, self._context, self._usage
        if usage is not None:
            usage.responded(proxy, context, head.status, now)
            if usage.continuable is not None and is_continuable(head):
                relayed = RelayedResponse(proxy, client, context, self._current, None, now)
                return ContinuedResponse(proxy, context, relayed, usage.continuable)
        return RelayedResponse(proxy, client, context, self._current, self._intake, now)

    def _fail(self, failure: Refusal) -> None:
        """Continue a failed response at another target if possible, else end it with an error."""
        response, now = self._response, self._proxy.clock()
        assert response is not None
        self._target.drop()
        moved = response.move(failure, now)
        if isinstance(moved, Refusal):
            self._cut(moved)
        elif moved:
            self._release_attempt(failure.reason.value, now)
            self.select(now)
        else:
            self._complete(_OK)

    def _complete(self, outcome: Outcome) -> None:
        """The client has received the end of the response."""
        response = self._response
        self._settle(outcome)
        self._client.finished(keep_alive=response is not None and response.keep_alive)

    def _cut(self, failure: Refusal) -> None:
        """End a response that failed, with an error if its format permits it, else by closing the connection."""
        response = self._response
        assert response is not None
        self._target.drop()
        in_order = response.end_early(failure)
        self._settle(response.outcome_of(failure), failure.reason.value)
        if in_order:
            self._client.finished(keep_alive=response.keep_alive)
        else:
            self._client.abort()

    def _refuse(self, refusal: Refusal, outcome: Outcome | None = None) -> None:
        """Respond with a refusal, or end a response that has begun; `outcome` None is derived from the reason."""
        proxy, context = self._proxy, self._context
        if self._response is not None:
            self._cut(self._response.not_moved(refusal))
            return
        request_format = error_format_of(context.request)
        status, lines, body = refusal_response(refusal, proxy.rng, request_format, context.request_id)
        if outcome is None:
            outcome = outcome_of_refusal(refusal.reason, own_deadline=context.own_deadline)
        self._settle(outcome, refusal.reason.value, status, len(body))
        proxy.metrics.refused(refusal.reason)
        self._client.respond(status, lines, body)

    def _settle(self, outcome: Outcome, reason: str = "", status: int = 0, sent_bytes: int = 0) -> None:
        """Release the queue entry, the reservations and the quota, then record the outcome. Only the first call counts.

        Args:
            reason: why the request was refused or its response ended early; empty otherwise.
            status: the status of a refusal.
            sent_bytes: the size (bytes) of the body of a refusal.
        """
        state = self._state
        if state is DONE:
            return
        proxy, context, attempt, response = self._proxy, self._context, self._attempt, self._response
        self._enter(DONE)
        proxy.active.remove(self)
        now = proxy.clock()
        account = Account(outcome, reason, status, None, now)
        account.received_bytes, account.sent_bytes = context.request.received_bytes, sent_bytes
        service_s = None
        if response is not None:
            response.settle(account)
            if outcome is _OK and response.is_measured:
                service_s = now - self._target.sent_at
        release_request(proxy, context, attempt, self._queue_entry, service_s, account)
        if outcome is _OK and self._lacking is not None and self._lacking is not attempt:
            self._lacking.charge_missing_model()
        if outcome is _REVOKED:
            proxy.metrics.revoked(state.name, reason)
