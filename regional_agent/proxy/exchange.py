"""One proxied request as a state machine: select a target, send, stream the response, or try another target.

What a target sends arrives at `AttemptSink`, which reports to the exchange how an attempt or a response has ended.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome
from penstock.admission.retry_after import MIN_RETRY_S
from penstock.continuation.stream_usage import StreamUsage
from penstock.retries.exchange_state import (
    AWAITING,
    BEGUN,
    DONE,
    QUEUED,
    REJECTED,
    SELECTING,
    STREAMING,
    TUNNEL,
)
from penstock.retries.retry_rules import RETRY_RULES, RetryReason
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.proxy.attempt_sink import AttemptOwner, AttemptSink
from regional_agent.proxy.no_target import reads_while_queued, wait_or_fall_back
from regional_agent.proxy.policy_enforcer import ActiveExchange
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.request_end import end_request, response_of_refusal
from regional_agent.proxy.retries import may_send_again, refuse_retry
from regional_agent.proxy.target_connection import TargetConnection
from regional_agent.proxy.upstream_request import ask_for_usage
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.routing.forwarded_attempt import ForwardedAttempt
from regional_agent.routing.queue_entry import QueueEntry
from regional_agent.telemetry.tracing.request_trace import SpanEvent

_SELECTION: Final = SpanEvent.SELECTION
_QUEUE: Final = SpanEvent.QUEUE
_OK: Final = Outcome.OK
_ENGINE_CUT: Final = Outcome.ENGINE_CUT
_REVOKED: Final = Outcome.REVOKED
_SATURATED: Final = Reason.SATURATED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


class Exchange(AttemptOwner):
    """Handles one client request."""

    def __init__(
        self,
        proxy: Proxy,
        client: ClientConnection,
        context: RequestContext,
        target: TargetConnection,
        sink: AttemptSink,
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._queue_entry: QueueEntry | None = None
        self._target = target
        self._sink = sink
        sink.owner = self
        self._state = self._sink.state
        self.context = context
        self.slot: set[ActiveExchange] = set()
        """The set of the timer wheel that contains the exchange."""

    # selecting a target

    def select(self, now: float) -> None:
        """Select the next target and send the request there, or queue it; a refusal ends the exchange. `now` in s."""
        self._state.enter(SELECTING)
        proxy, context, sink = self._proxy, self.context, self._sink
        trace = context.trace
        if trace is not None:
            trace.note(_SELECTION, now)
        if not context.request.whole:
            self._client.pause_reading()
        if context.estimate.streaming:
            if sink.usage is None:
                sink.usage = StreamUsage()
            ask_for_usage(proxy, context, sink.usage, now)
        target: Attempt | QueueEntry | Refusal = proxy.router.next_target(context, now)
        if isinstance(target, Refusal):
            target = wait_or_fall_back(proxy, context, target, self._on_turn)
        if isinstance(target, (LocalAttempt, ForwardedAttempt)):
            self._target.go_to(target, sink, now)
            if context.is_batch:
                self._may_yield(target)
        elif isinstance(target, Refusal):
            self._refuse(target)
        else:
            self._state.enter(QUEUED)
            if trace is not None:
                trace.note(_QUEUE, proxy.clock())
            self._queue_entry = target
            if not context.request.whole and reads_while_queued(proxy, context):
                self._client.resume_reading()

    def _on_turn(self, target: Attempt | Refusal) -> None:
        """Process the target or the refusal that the admission queue returned."""
        now = self._proxy.clock()
        if self._state.now is not QUEUED:
            if not isinstance(target, Refusal):
                target.settle(now)
            return
        self._state.enter(SELECTING)
        if self._queue_entry is not None:
            self.context.queued_s += now - self._queue_entry.since
        self._queue_entry = None
        if not isinstance(target, Refusal):
            self._target.go_to(target, self._sink, now)
            if self.context.is_batch:
                self._may_yield(target)
        elif self._proxy.router.requests.fall_back(self.context, self.context.request, target):
            self.select(now)
        else:
            self._refuse(target)

    def on_connected(self) -> None:
        """Send the request over the new connection."""
        self._state.enter(AWAITING)
        attempt = self._sink.current
        self._target.send(attempt, self._sink, self._proxy.clock())
        if self.context.is_batch:
            self._may_yield(attempt)

    def _may_yield(self, attempt: Attempt) -> None:
        """Let requests with a priority end a batch request that was sent, whose slot they need."""
        if isinstance(attempt, LocalAttempt) and self._state.now is AWAITING:
            self._proxy.router.queue.batch_requests.began(attempt, self)

    def retry(self, why: RetryReason) -> None:
        """Try another target, if the request can be sent again and the retry budget permits it."""
        proxy, now = self._proxy, self._leave_target(why.value)
        self.context.failed_with(why)
        error = self._sink.engine_error
        if error is not None and error[0] < 500 and RETRY_RULES[why].outcome is _ENGINE_CUT:
            # An earlier engine lacked the model or the route; that this one failed is no mistake of the client.
            self._sink.engine_error = None
        response = self._sink.response
        has_begun = response is not None and response.has_begun
        refusal = refuse_retry(proxy, self.context, why, now, has_begun=has_begun)
        if refusal is not None:
            self._refuse(refusal)
        else:
            proxy.metrics.retried(why)
            self.select(now)

    def _leave_target(self, why: str) -> float:
        """Drop the target and release its attempt; the request continues because of `why`. Returns the time (s)."""
        attempt, now = self._sink.current, self._proxy.clock()
        self._target.drop()
        self._proxy.recorder.attempt_lost(self.context, attempt, now)
        attempt.settle(now)
        self._sink.leave()
        self.context.attempt_failed(why, now)
        return now

    @property
    def may_be_preempted(self) -> bool:
        """Whether no byte of the response has arrived, and the request can be sent again."""
        return self._state.now is AWAITING and may_send_again(self.context)

    def wait_again(self, why: RetryReason) -> None:
        """Leave the slot to another request, which takes it first, and select a target again."""
        self._leave_target(why.value)
        self._proxy.metrics.retried(why)
        self._state.enter(SELECTING)
        asyncio.get_running_loop().call_soon(self._select_again)

    def _select_again(self) -> None:
        if self._state.now is SELECTING:
            self.select(self._proxy.clock())

    # ends that the agent decides

    def check(self, now: float) -> float:
        """Enforce the deadline and the engine timeouts; returns when to check again (s)."""
        state = self._state.now
        if state is not TUNNEL and now > self.context.deadline_at:
            self._pass_deadline()
        elif state is AWAITING:
            self._sink.check_awaiting(now)
        elif state is REJECTED:
            self._sink.check_rejection(now)
        elif state in BEGUN:
            due = self._sink.check_response(now)
            if not isinstance(due, Refusal):
                return min(self.context.deadline_at, due)
            self.fail(due)
        return now

    def _pass_deadline(self) -> None:
        """End the exchange at its deadline. A client that sends or reads too slowly for it is the cause itself."""
        context = self.context
        if not (context.request.whole or self._target.write_stalled):
            self.on_request_refused(Refusal(Reason.REQUEST_TIMEOUT, "the request body did not arrive in time"))
            return
        context.own_deadline = context.own_deadline or self._sink.client_was_slow
        self.end(Refusal(Reason.DEADLINE_PASSED, "the request's deadline has passed"))

    def shut_down(self) -> None:
        """End the exchange because the agent stops."""
        reason, detail = Reason.SHUTTING_DOWN, "the agent stops"
        if self._state.now is AWAITING and not self.context.is_repeatable:
            reason, detail = Reason.ENGINE_TIMEOUT, "the agent stops, and the engine may have begun"
        self.end(Refusal(reason, detail, retry_after_s=MIN_RETRY_S), Outcome.SHUTDOWN)

    def reauthorize(self) -> Refusal | None:
        """End the exchange if the policy in force no longer permits it; returns the reason if it does so."""
        attempt = self._sink.attempt
        if self._state.now is DONE:
            return None
        region = attempt.region if attempt is not None else ""
        refusal = self._proxy.router.reauthorization.reauthorize(self.context, region)
        if refusal is not None:
            self.end(refusal)
        return refusal

    def end(self, refusal: Refusal, outcome: Outcome | None = None) -> None:
        """Refuse the request, or cut its response; `outcome` of a refusal, None to derive it from the reason."""
        if self._state.now in BEGUN:
            self._cut(refusal)
        elif self._state.now is not DONE:
            self._target.drop()
            self._refuse(refusal, outcome)

    # RequestHandler

    def on_client_gone(self) -> None:
        """The client disconnected: cancel the request upstream."""
        if self._state.now is not DONE:
            response = self._sink.response if self._state.now in BEGUN else None
            outcome = Outcome.CLIENT_LEFT if response is None else response.outcome_without_client()
            self._target.drop()
            self._settle(outcome)

    def on_client_writable(self, writable: bool) -> None:
        """Apply the client's back-pressure to the engine."""
        self._sink.client_stalled = not writable
        # Before the response, the back-pressure belongs to an earlier response of the same connection.
        if self._state.now is not AWAITING:
            self._sink.client_was_slow = self._sink.client_was_slow or not writable
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
        if self._state.now is STREAMING:
            self._settle(Outcome.CLIENT_ERROR)
            self._client.abort()
        else:
            self._refuse(refusal, None if refusal.reason is _SATURATED else Outcome.CLIENT_ERROR)

    def drop_body(self) -> bool:
        """Drop the kept body if it has been sent; the request cannot be sent again. False if the body is needed."""
        response = self._sink.response if self._state.now is STREAMING else None
        if self._state.now is not AWAITING and (response is None or not response.drop_body()):
            return False
        self._client.listener.bodies.drop(self.context.request)
        return True

    # ends of the response

    def fail(self, failure: Refusal) -> None:
        """Continue a failed response at another target if possible, else end it with an error."""
        response = self._sink.response
        assert response is not None
        self._target.drop()
        moved = response.move(failure, self._proxy.clock())
        if isinstance(moved, Refusal):
            self._cut(moved)
        elif moved is None:
            self.select(self._leave_target(failure.reason.value))
        else:
            self.complete(moved, keep_alive=response.keep_alive)

    def complete(self, outcome: Outcome, *, keep_alive: bool) -> None:
        """The client has received the end of the response."""
        self._settle(outcome)
        self._client.finished(keep_alive=keep_alive)

    def _cut(self, failure: Refusal, outcome: Outcome | None = None) -> None:
        """End a failed response, with an error if its format has one, else by a close. `outcome` as in `_refuse`."""
        response = self._sink.response
        assert response is not None
        self._target.drop()
        in_order = response.end_early(failure)
        self._settle(outcome or response.outcome_of(failure), failure.reason.value)
        if in_order:
            self._client.finished(keep_alive=response.keep_alive)
        else:
            self._client.abort()

    def _refuse(self, refusal: Refusal, outcome: Outcome | None = None) -> None:
        """Respond with a refusal, or end a response that has begun; `outcome` None is derived from the reason."""
        proxy, context, response = self._proxy, self.context, self._sink.response
        if response is not None:
            self._cut(response.not_moved(refusal), None if response.has_begun else outcome)
            return
        (status, lines, body), derived = response_of_refusal(proxy, context, refusal, self._sink.engine_error)
        self._settle(outcome or derived, refusal.reason.value, status, len(body))
        proxy.metrics.refused(refusal.reason)
        self._client.respond(status, lines, body)

    def _settle(self, outcome: Outcome, reason: str = "", status: int = 0, sent_bytes: int = 0) -> None:
        """Release everything that the request holds, and record its account. Only the first call counts.

        Args:
            reason: why the request was refused or its response ended early; empty otherwise.
            status: of a refusal, as is `sent_bytes`, the size of its body.
        """
        state = self._state.now
        if state is DONE:
            return
        self._state.enter(DONE)
        proxy, context, sink = self._proxy, self.context, self._sink
        sink.owner = None
        self.slot.discard(self)
        now, service_s, response = proxy.clock(), None, sink.response
        account = Account(outcome, reason, status, None, now)
        account.received_bytes, account.sent_bytes = context.request.received_bytes, sent_bytes
        if outcome is _OK and response is not None and response.is_measured:
            service_s = now - self._target.sent_at
        try:
            if response is not None:
                response.settle(account)
        except Exception:
            self._client.abort()
            raise
        finally:
            end_request(proxy, context, sink.attempt, self._queue_entry, account, service_s)
        if outcome is _OK and sink.differing is not None and sink.differing is not sink.attempt:
            sink.differing.charge_difference()
        if outcome is _REVOKED:
            proxy.metrics.revoked(state.name, reason)
