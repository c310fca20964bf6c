"""An authorized request at the endpoint picker: its target is selected, and its response and its end are accounted.

The functions are those of the agent's exchanges (`regional_agent/proxy/exchange.py`), but Envoy transfers the bytes.
A second attempt is Envoy's: it sends the request to the next endpoint of the list. The response states which endpoint
has served, by which the reservation is corrected.
"""

from __future__ import annotations

from typing import Final

import structlog

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome, outcome_of_failure
from penstock.admission.retry_after import MIN_RETRY_S
from penstock.answers.stream_usage_flag import REFUSING_STATUSES
from penstock.continuation.stream_usage import StreamUsage
from penstock.http.header_rules import REFUSAL_HEADER, Header, agent_lines
from penstock.retries.retry_rules import RetryReason
from penstock.routing.reasons import Reason, Refusal
from regional_agent.picker import envoy_responses, grpc_requests, message_reading
from regional_agent.picker.conversation import Conversation, FromEnvoy, PickerParts, StreamState
from regional_agent.picker.observed_response import ObservedResponse
from regional_agent.picker.processing_request import BUFFERED, FULL_DUPLEX_STREAMED, ProcessingRequest
from regional_agent.picker.repetition import Targets
from regional_agent.proxy.no_target import wait_or_fall_back
from regional_agent.proxy.policy_enforcer import ActiveExchange
from regional_agent.proxy.request_end import end_request, refusal_of_context, response_of_refusal
from regional_agent.proxy.retries import refusal_of_answer, refusal_without_retry, rejection_of
from regional_agent.proxy.upstream_request import ask_for_usage, special_lines
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.routing.forwarded_attempt import ForwardedAttempt
from regional_agent.routing.queue_entry import QueueEntry
from regional_agent.telemetry.tracing.request_trace import SpanEvent

_BY_UPSTREAM: Final = "upstream_"
"""Beginning of the details of Envoy's own response if the endpoint is its cause."""

_TIMEOUTS: Final = ("upstream_response_timeout", "upstream_per_try_timeout", "stream_idle_timeout")
"""Beginnings of these details if the endpoint did not begin to respond within a limit of Envoy."""

_NO_CONNECTION: Final = "connection_failure"
"""Part of these details if no endpoint received the request."""

_S = StreamState

log = structlog.get_logger()


class PickedRequest:
    """Handles one authorized request.

    An `ActiveExchange` by its methods alone: an interpreted class cannot inherit from a compiled protocol.
    """

    def __init__(self, parts: PickerParts, talk: Conversation, context: RequestContext, given: FromEnvoy) -> None:
        """Start before the first selection.

        Args:
            talk: the state of the request, and the way back to Envoy.
        """
        self._proxy = parts.proxy
        self._parts = parts
        self._talk = talk
        self._given = given
        self._queue_entry: QueueEntry | None = None
        self._attempt: Attempt | None = None
        self._targets: Targets | None = None
        """Where Envoy may send the request; None before it has a target."""
        self._usage: StreamUsage | None = None
        self._response: ObservedResponse | None = None
        self._held_head: bytes | None = None
        """The changes to the head of a response that may be an error; None once Envoy has it."""
        self._sent_at = 0.0
        self.context = context
        self.slot: set[ActiveExchange] = set()

    # selecting a target

    def select(self, now: float) -> None:
        """Select the target and name it to Envoy, or queue the request; a refusal ends it. `now` in s."""
        self._talk.enter(_S.SELECTING)
        proxy, context = self._proxy, self.context
        if context.trace is not None:
            context.trace.note(SpanEvent.SELECTION, now)
        if context.estimate.streaming:
            if self._usage is None:
                self._usage = StreamUsage()
            ask_for_usage(proxy, context, self._usage, now, may_continue=False)
        target: Attempt | QueueEntry | Refusal = proxy.router.next_target(context, now)
        if isinstance(target, Refusal):
            target = wait_or_fall_back(proxy, context, target, self._on_turn)
        if isinstance(target, (LocalAttempt, ForwardedAttempt)):
            self._pick(target, now)
        elif isinstance(target, Refusal):
            self._refuse(target)
        else:
            self._talk.enter(_S.QUEUED)
            if context.trace is not None:
                context.trace.note(SpanEvent.QUEUE, proxy.clock())
            self._queue_entry = target

    def _on_turn(self, target: Attempt | Refusal) -> None:
        """Process the target or the refusal that the admission queue returned."""
        now = self._proxy.clock()
        if self._talk.state is not _S.QUEUED:
            if not isinstance(target, Refusal):
                target.settle(now)
            return
        self._talk.enter(_S.SELECTING)
        if self._queue_entry is not None:
            self.context.queued_s += now - self._queue_entry.since
        self._queue_entry = None
        if not isinstance(target, Refusal):
            self._pick(target, now)
        elif self._proxy.router.requests.fall_back(self.context, self.context.request, target):
            self.select(now)
        else:
            self._refuse(target)

    def _pick(self, attempt: Attempt, now: float) -> None:
        """Name the target to Envoy, and send the part of the body that has arrived."""
        context, talk = self.context, self._talk
        if attempt.from_peer and context.only_region:
            # Another region has the object of the request, or no policy in force lets this one serve it any more.
            attempt.settle(now)
            self._refuse(Refusal(Reason.NONE_READY, f"only {attempt.region} can serve the request, which stays here"))
            return
        self._attempt = attempt
        targets = Targets(self._parts, context, attempt, now)
        if not targets.is_known:
            self._pick_another(attempt, now)
            return
        self._targets = targets
        talk.enter(_S.PICKED)
        self._sent_at = now
        if context.trace is not None:
            address = attempt.address
            context.trace.attempt(attempt.region, attempt.endpoint_name, attempt.kind, address.host, address.port, now)
            context.trace.note(SpanEvent.SENT, now)
        ledger = self._proxy.recorder.ledger
        if ledger is not None and not context.is_in_ledger:
            ledger.started(context)
        self._send_target(attempt, targets, now)

    def _pick_another(self, attempt: Attempt, now: float) -> None:
        """Exclude a target whose host name has not been resolved; the health checks resolve it."""
        context = self.context
        self._attempt = None
        attempt.settle(now)
        attempt.rejected(context, Reason.UNREACHABLE, now)
        self.select(now)

    def _send_target(self, attempt: Attempt, targets: Targets, now: float) -> None:
        proxy, context, given, talk = self._proxy, self.context, self._given, self._talk
        request = attempt.rewritten(context.request) if isinstance(attempt, LocalAttempt) else context.request
        left_s, received_via = context.deadline_at - now, request.every(b"via")
        lines = agent_lines(context.request_id, context.traceparent, left_s, proxy.via, received_via)
        lines += special_lines(request, context, self._parts.passing, given.scheme, trusted=given.trusted)
        wanted = envoy_responses.headers_of_lines(lines + attempt.target_lines)
        changes = envoy_responses.header_changes(given.headers, wanted)
        if request.target != given.target:
            changes += envoy_responses.set_header(b":path", request.target)
        changes = targets.name_to_envoy(changes, now, over_grpc=talk.is_grpc)
        in_body = given.in_message == envoy_responses.TO_REQUEST_BODY
        if talk.request_mode == BUFFERED and in_body:
            body = bytes(request.body)
            changes += envoy_responses.set_header(b"content-length", b"%d" % len(body))
            talk.send(targets.message(given.in_message, changes, body))
            return
        talk.send(targets.message(given.in_message, changes, None))
        ends = context.request.whole and not given.has_trailers
        if given.has_body and (request.body or ends):
            for part in envoy_responses.body_chunks(envoy_responses.TO_REQUEST_BODY, request.body, ends=ends):
                talk.send(part)
        if given.has_trailers:
            talk.send(envoy_responses.unchanged(envoy_responses.TO_REQUEST_TRAILERS))

    # the response

    def on_response_headers(self, message: ProcessingRequest) -> None:
        """Process the head of the response: of an endpoint, or of Envoy itself if it reached none."""
        proxy, context, talk = self._proxy, self.context, self._talk
        now = proxy.clock()
        details = message_reading.own_response_of_envoy(message)
        if details:
            self._end_for_envoy(details, message)
            return
        head = message_reading.read_response_head(message.headers)
        if head is not None and talk.is_grpc:
            # A response without a body has its status in the head.
            head.status = grpc_requests.http_status(head.headers) or head.status
        talk.enter(_S.RESPONDING)
        if head is None:
            self.end(Refusal(Reason.ENGINE_FAILED, "the engine's response is malformed"))
            return
        self._correct(message.upstream_address or message.served, now)
        attempt = self._attempt
        if attempt is not None:
            why = rejection_of(proxy, context, attempt, None, head)
            if isinstance(why, Reason):
                attempt.rejected(context, why, now)
            refusal = None if why is None or talk.is_grpc else refusal_without_retry(proxy, context, attempt, why)
            if refusal is not None:
                self._refuse(refusal)
                return
        if self._usage is not None and self._usage.is_hidden:
            if head.status < 300:
                proxy.usage_requests.accepted(context.model, now)
            elif head.status in REFUSING_STATUSES:
                # The request cannot be sent again without the flag; later requests are sent without it.
                proxy.usage_requests.may_have_refused(context.model, now)
        if context.trace is not None:
            context.trace.note(SpanEvent.STREAM, now)
        # In other modes, Envoy sends no part of the body before it has the head.
        observed = ObservedResponse(proxy, context, attempt, head, self._usage, now)
        if talk.response_mode == FULL_DUPLEX_STREAMED and not talk.is_grpc and isinstance(attempt, LocalAttempt):
            observed.hold_beginning()
        self._response = observed
        self._held_head = envoy_responses.header_changes(head.headers, observed.headers(head))
        if message.ends:
            observed.on_end(now)
        if self._begins(observed) and message.ends:
            self._complete(observed)

    def _begins(self, observed: ObservedResponse) -> bool:
        """Let Envoy have the head of a response that is no error; returns whether it has it."""
        changes, error = self._held_head, observed.first_error
        if changes is None or observed.is_held:
            return changes is None
        refusal = None
        if error is not None and self._attempt is not None:
            refusal = refusal_of_answer(self._proxy, self.context, self._attempt, error)
        if refusal is not None:
            self._response = None
            self._refuse(refusal)
            return False
        self._held_head = None
        self._talk.send(envoy_responses.response_headers(changes))
        return True

    def on_response_body(self, chunk: bytes, *, ends: bool) -> None:
        """Read a part of the response, and return to Envoy what the client receives."""
        observed, now = self._observed(), self._proxy.clock()
        if ends and self._talk.is_grpc:
            observed.use_trailers((), over_grpc=True)
        passed = observed.on_body(chunk, now)
        if ends:
            passed += observed.on_end(now)
        if not self._begins(observed):
            return
        if self._talk.response_mode == FULL_DUPLEX_STREAMED:
            self._talk.send_response_part(passed, ends=ends)
        else:
            self._talk.send(envoy_responses.response_part(chunk, passed))
        if ends:
            self._complete(observed)

    def on_response_trailers(self, trailers: list[Header]) -> None:
        """Process the trailers, which end the response."""
        observed = self._observed()
        observed.use_trailers(trailers, over_grpc=self._talk.is_grpc)
        rest = observed.on_end(self._proxy.clock())
        if not self._begins(observed):
            return
        if rest and self._talk.response_mode == FULL_DUPLEX_STREAMED:
            self._talk.send_response_part(rest, ends=False)
        kept = trailers if self._talk.is_grpc else [each for each in trailers if each[0] != REFUSAL_HEADER]
        self._talk.send(envoy_responses.response_trailers(envoy_responses.header_changes(trailers, kept)))
        self._complete(observed)

    def _observed(self) -> ObservedResponse:
        if self._response is None:
            # Raises InvalidTransition: the head has not arrived.
            self._talk.enter(_S.HEAD)
        assert self._response is not None
        return self._response

    def _complete(self, observed: ObservedResponse) -> None:
        self._settle(observed.outcome())

    def _correct(self, served: str, now: float) -> None:
        """Move the attempt to the target that has served, if Envoy sent the request there after a failure."""
        first, targets = self._attempt, self._targets
        if first is None or targets is None:
            return
        self._attempt = targets.move(first, served, now)
        if self._attempt is None:
            log.warning("Envoy sent a request to an endpoint that the agent does not have", endpoint=served)
        elif self._attempt is not first:
            self._sent_at = now

    def _end_for_envoy(self, details: str, message: ProcessingRequest) -> None:
        """Respond instead of Envoy, which has a response of its own: `details` is its reason."""
        refusal = message_reading.fault_of_client(message)
        if refusal is not None:
            self._refuse(refusal)
            return
        if details.startswith(_BY_UPSTREAM):
            self._correct(message.upstream_address, self._proxy.clock())
        attempt = self._attempt
        if attempt is not None and details.startswith(_TIMEOUTS):
            attempt.failed(Outcome.STALLED)
            self._refuse(Refusal(Reason.ENGINE_TIMEOUT, f"the engine did not begin to respond in time: {details}"))
            return
        if attempt is not None and details.startswith(_BY_UPSTREAM):
            is_cut = _NO_CONNECTION not in details
            attempt.unreachable(self.context, broke=is_cut)
            self.context.failed_with(RetryReason.CLOSED_EARLY if is_cut else RetryReason.CONNECT_FAILED)
            if attempt.from_peer:
                self._refuse(self._region_lost(f"{attempt.region} could not be reached: {details}", is_cut=is_cut))
                return
        self._refuse(Refusal(Reason.ENGINE_FAILED, f"the endpoint could not be reached: {details}"))

    def _region_lost(self, detail: str, *, is_cut: bool) -> Refusal:
        """What the client receives if no region is left: to send the request again, unless it may have run once."""
        if is_cut and not self.context.is_repeatable:
            return Refusal(Reason.ENGINE_FAILED, detail)
        return Refusal(Reason.NONE_READY, detail, retry_after_s=MIN_RETRY_S)

    # ends

    def check(self, now: float) -> float:
        """Enforce the deadline, and the time until the response begins; returns when to check again (s)."""
        state, context = self._talk.state, self.context
        if now > context.deadline_at:
            self.end(Refusal(Reason.DEADLINE_PASSED, "the request's deadline has passed"))
        elif state is _S.PICKED and self._targets is not None and context.request.whole:
            self._correct(self._targets.reached(), now)
            attempt = self._attempt
            assert attempt is not None
            expected_tokens = attempt.waits(now)
            if context.reservation is not None:
                context.reservation.answer_grew(expected_tokens, has_arrived=False)
            limit_s = self._proxy.time_limits_of(context).first_byte_limit_s(streaming=context.estimate.streaming)
            if self._targets.is_lost():
                self.end(self._region_lost("the serving region has failed", is_cut=True))
            elif now - self._sent_at > limit_s:
                attempt.failed(Outcome.STALLED)
                self.end(Refusal(Reason.ENGINE_TIMEOUT, f"the engine did not begin to respond within {limit_s:g} s"))
        elif state is _S.RESPONDING:
            if self._held_head is None or not context.estimate.streaming:
                return context.deadline_at
            self._release_late(now)
        return now

    def _release_late(self, now: float) -> None:
        """Let Envoy have the beginning of a stream that has been held for long."""
        observed = self._observed()
        late = observed.release_late(self._sent_at, now)
        if late and self._begins(observed):
            self._talk.send_response_part(late, ends=False)

    def _stream(self) -> bytes:
        """Return the identifier of the request in Envoy's access log; empty before Envoy has a target."""
        return b"" if self._targets is None else self._targets.stream

    def shut_down(self) -> None:
        """End the request because the agent stops."""
        reason, detail = Reason.SHUTTING_DOWN, "the agent stops"
        if self._talk.state is _S.PICKED and not self.context.is_repeatable:
            reason, detail = Reason.ENGINE_TIMEOUT, "the agent stops, and the engine may have begun"
        self.end(Refusal(reason, detail, retry_after_s=MIN_RETRY_S), Outcome.SHUTDOWN)

    def reauthorize(self) -> Refusal | None:
        """End the request if the policy in force no longer permits it; returns the reason if it does so."""
        if self._talk.is_done:
            return None
        router, context = self._proxy.router, self.context
        region = self._attempt.region if self._attempt is not None else ""
        refusal = router.reauthorization.reauthorize(context, region)
        if refusal is None and self._talk.state is _S.PICKED and self._targets is not None:
            others = self._targets.region_names(router.region) - context.residency.permitted.regions
            if others:
                refusal = Refusal(Reason.RESIDENCY_DENIED, f"residency forbids {', '.join(sorted(others))}")
        if refusal is not None:
            self.end(refusal)
        return refusal

    def end(self, refusal: Refusal, outcome: Outcome | None = None) -> None:
        """Refuse the request, or let Envoy reset its response; `outcome` None is derived from the reason."""
        if self._parts.early_ends.settle_now(self._stream()):
            return
        if self._talk.state is _S.RESPONDING:
            own = self.context.own_deadline
            status, lines, body = refusal_of_context(self._proxy, self.context, refusal)
            self._settle(outcome or outcome_of_failure(refusal.reason, own_deadline=own), refusal.reason.value)
            self._talk.respond(status, lines, body, self.context.request, refusal.reason.value)
        elif not self._talk.is_done:
            self._refuse(refusal, outcome)

    def refuse_body(self, refusal: Refusal) -> None:
        """Refuse the request, whose body is malformed, too large or too slow, or has to make room for another one."""
        self.end(refusal, None if refusal.reason is Reason.SATURATED else Outcome.CLIENT_ERROR)

    def on_closed(self) -> None:
        """End the request: Envoy has closed its stream before the end of the response."""
        response = self._response
        if response is not None and not (self._talk.is_done or response.has_answer()):
            self._parts.early_ends.closed(self._stream(), lambda reported: self._settle(response.ended_as(reported)))
        elif not self._talk.is_done:
            self._settle(Outcome.CLIENT_LEFT if response is None else response.outcome())

    def _refuse(self, refusal: Refusal, outcome: Outcome | None = None) -> None:
        proxy, context = self._proxy, self.context
        (status, lines, body), derived = response_of_refusal(proxy, context, refusal, None)
        self._settle(outcome or derived, refusal.reason.value, status, len(body))
        proxy.metrics.refused(refusal.reason)
        self._talk.respond(status, lines, body, context.request, refusal.reason.value)

    def _settle(self, outcome: Outcome, reason: str = "", status: int = 0, sent_bytes: int = 0) -> None:
        """Release everything that the request holds, and record its account. Only the first call counts."""
        state = self._talk.state
        if state is _S.DONE:
            return
        self._talk.enter(_S.DONE)
        self._parts.early_ends.discard(self._stream())
        proxy, context = self._proxy, self.context
        self.slot.discard(self)
        now, service_s = proxy.clock(), None
        account = Account(outcome, reason, status, None, now)
        account.received_bytes, account.sent_bytes = context.request.received_bytes, sent_bytes
        if self._response is not None:
            self._response.settle(account)
            if outcome is Outcome.OK:
                service_s = now - self._sent_at
        try:
            end_request(proxy, context, self._attempt, self._queue_entry, account, service_s)
        finally:
            self._parts.body_limits.release(context.request)
        if outcome is Outcome.REVOKED:
            proxy.metrics.revoked(state.value, reason)
