"""Receives the response of the current attempt: detects rejections and errors, and begins the client's response.

A response head is held until the first body byte that is no error: engines send the head before they start, and until
the client has received a byte the request can be sent elsewhere. From then on the client's response decides.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.accounts.outcome_rules import Outcome
from penstock.answers.answer_errors import AnswerError
from penstock.answers.content_decoder import beginning_of, coding_of
from penstock.continuation.continuable_request import ContinuableRequest
from penstock.continuation.stream_usage import StreamUsage
from penstock.health.health_check import MAX_READ_BYTES
from penstock.http.answer_intake import AnswerIntake, intake_of
from penstock.http.header_rules import Header
from penstock.http.response_head import ResponseHead
from penstock.retries.exchange_state import CONNECTING, REJECTED, STREAMING, TUNNEL, ExchangeState
from penstock.retries.retry_rules import OF_ENDPOINTS, RetryReason
from penstock.retries.withheld import NEEDS_BODY, Withheld, WithheldAnswer
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.responses.continued_response import ContinuedResponse, response_to
from regional_agent.proxy.responses.relayed_response import (
    ENDED_WITHIN_ANSWER,
    RelayedResponse,
    broke_off,
)
from regional_agent.proxy.responses.tunnel_response import TunnelResponse
from regional_agent.proxy.retries import after_error, after_withheld, rejection_of, while_awaiting
from regional_agent.proxy.target_connection import TargetConnection, TargetSink
from regional_agent.proxy.upstream_request import withdraw_usage
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.routing.forwarded_attempt import REASONS
from regional_agent.telemetry.tracing.request_trace import SpanEvent
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_sink import ConnectFailed, Stale, UpstreamError
from regional_agent.websocket.tunnel import Tunnel

REJECTION_READ_S: Final = 1.0
"""Maximum time (s) of reading the body of a rejection to reuse its connection; then the connection is closed."""

_STREAM: Final = SpanEvent.STREAM
_ENGINE_FAILED: Final = Reason.ENGINE_FAILED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""

Response = RelayedResponse | ContinuedResponse | TunnelResponse
"""A response that the client has begun to receive."""


class AttemptOwner(Protocol):
    """The exchange whose attempts these are. Each call may select another target, or end the exchange."""

    def on_connected(self) -> None:
        """The connection is open; the request can be sent."""

    def retry(self, why: RetryReason) -> None:
        """The attempt has failed, and another one may follow."""

    def end(self, refusal: Refusal) -> None:
        """The attempt has failed, and no other one may follow."""

    def fail(self, failure: Refusal) -> None:
        """The response that the client receives has failed."""

    def complete(self, outcome: Outcome, *, keep_alive: bool) -> None:
        """The client has received the end of the response, and may send another request if `keep_alive`."""


class AttemptSink(TargetSink):
    """The sink of the attempts of one exchange, one at a time."""

    def __init__(
        self, proxy: Proxy, client: ClientConnection, context: RequestContext, target: TargetConnection
    ) -> None:
        """Receive responses over `target`."""
        self._proxy = proxy
        self._client = client
        self._context = context
        self._target = target
        self.state = ExchangeState()
        """The state of the exchange, which shares it."""
        self._head: ResponseHead | None = None
        self._intake: AnswerIntake | None = None
        """Reads the response of the current attempt; None if the response is not read."""
        self._is_begun = False
        """Whether the response of the current attempt is for the client."""
        self._rejected_because: Reason | Withheld | None = None
        """Why the response is not for the client; None if it may be."""
        self._continuable: ContinuableRequest | None = None
        """The request, if another target can continue the response of the current attempt."""
        self._rejection = b""
        """The body of the rejection, if it is needed; at most a read more than MAX_READ_BYTES."""
        self.engine_error: tuple[int, list[bytes], bytes] | None = None
        """Status, header lines and body of the last error by which an engine failed the request, if it was short."""
        self.owner: AttemptOwner | None = None
        """The exchange; None after its end, so that it is freed without the cyclic garbage collector."""
        self.attempt: Attempt | None = None
        """The current attempt, or the last one; it holds a reservation until it is settled."""
        self.response: Response | None = None
        """The response that the client receives; None before its first byte."""
        self.usage: StreamUsage | None = None
        """What the agent asks the engine to report; None if the response is no stream."""
        self.differing: LocalAttempt | None = None
        """The attempt at an endpoint that responded as if it lacked the model, or required a credential."""
        self.client_was_slow = False
        """Whether the client has read the response more slowly than its target sent it."""
        self.client_stalled = False
        """Whether the client's write buffer is above its high-water mark."""

    def leave(self) -> None:
        """Forget the attempt, and what it has received, which must not be forwarded after it."""
        self.attempt = self._head = self._intake = self._rejected_because = None
        self._is_begun, self._rejection = False, b""

    @property
    def current(self) -> Attempt:
        """The current attempt; only while there is one."""
        assert self.attempt is not None
        return self.attempt

    # TargetSink

    def on_connected(self) -> None:
        """Send the request over the new connection."""
        if self.owner is not None:
            self.owner.on_connected()

    def on_read(self, head: ResponseHead | None, parts: list[bytes], ended: bool) -> None:
        """Process one read, until it ends the attempt, and write its data to the client."""
        attempt, target, at = self.attempt, self._target, 0
        upstream = target.upstream
        if ended:
            target.upstream = None
        if head is not None:
            self._on_head(head)
        while at < len(parts) and not self._is_begun:
            if self.owner is None or self.attempt is not attempt:
                return
            self._hold(parts[at])
            at += 1
        response = self.response
        if self.owner is None or self.attempt is not attempt:
            return
        if ended and not self._is_begun:
            self._end_held(upstream)
        elif response is not None and self._is_begun and (ended or at < len(parts)):
            end = response.on_read(parts[at:], ended, upstream)
            if isinstance(end, Outcome):
                self.owner.complete(end, keep_alive=response.keep_alive)
                return
            if end is not None:
                self.owner.fail(end)
                return
        response = self.response
        if response is None or not self._is_begun or isinstance(response, TunnelResponse):
            return
        if response.writer.flush() and self.client_stalled:
            target.set_reading(False)

    def _on_head(self, head: ResponseHead) -> None:
        """Hold the head, and detect a rejection."""
        self._head, self._intake, self._continuable = head, None, None
        proxy, context, usage, owner = self._proxy, self._context, self.usage, self.owner
        shows_usage = usage is not None and usage.is_hidden and head.is_encoded_stream
        may_be_read = head.is_plain and not shows_usage
        reason = None if may_be_read else rejection_of(proxy, context, self.current, usage, head)
        if reason is not None and owner is not None:
            self.state.enter(REJECTED)
            self._rejected_because, self._target.waits_since = reason, proxy.clock()
            if head.status < 400:
                # The response may have no end.
                self._target.drop()
                self._after_rejection()
        elif self.response is None or not self.response.has_begun:
            if usage is not None and usage.continuable is not None and head.is_continuable:
                self._continuable = usage.continuable
            if self.response is not None:
                self._target.waits_since = proxy.clock()
            hides_usage = usage is not None and (usage.is_hidden or (usage.is_unwanted and self._continuable is None))
            formats, route = proxy.answer_formats, context.request.route
            self._intake = intake_of(formats, route, head, context.estimate, hides_usage=hides_usage)

    def _hold(self, chunk: bytes) -> None:
        """Process a part of a body of which the client has nothing; the first part that is no error begins it."""
        intake = self._intake
        if self._rejected_because is not None:
            if self._rejected_because in NEEDS_BODY and len(self._rejection) <= MAX_READ_BYTES:
                self._rejection += chunk
                if len(self._rejection) > MAX_READ_BYTES:
                    self._forward_withheld()
        elif intake is None:
            self._begin(chunk)
        elif not intake.begin(chunk):
            self._target.waits_since = now = self._proxy.clock()
            if intake.is_late(self._target.sent_at, now):
                self._forward_late(intake, now)
        elif (error := intake.error) is not None and self.current.from_peer:
            # A trailer shows if the peer's agent gave up, which by the head it cannot after comments.
            self._target.waits_since = self._proxy.clock()
        elif error is None or not self._leaves(error):
            if intake.is_media:
                self._intake = None
            self._begin(intake.take_held())

    def _end_held(self, upstream: UpstreamConnection | None) -> None:
        """End a response of which the client has nothing: begin and complete it, or try another target."""
        if self._rejected_because is not None and self._after_rejection(is_whole=True):
            return
        intake, rest = self._intake, self._rejection
        if intake is not None and intake.held and intake.breaks_off():
            self._break_off(ENDED_WITHIN_ANSWER)
            return
        trailer = upstream.error_trailer if upstream is not None and self.current.from_peer else b""
        if trailer and self._refused_by_trailer(trailer):
            return
        if intake is not None:
            rest = intake.rest + intake.parser.finish(complete=True)
            error, is_empty = intake.error, intake.parser.between_records
            if error is not None and self._leaves(error):
                return
            if error is not None and is_empty and self.response is not None and self.owner is not None:
                # Without an error event, the client would receive comments alone, and take them for an answer.
                self.current.erred(error)
                self._context.engine_reported(error.message)
                self.owner.end(Refusal(_ENGINE_FAILED, error.message))
                return
            rest = intake.take_held() + rest
        self._begin(rest)
        if self._is_begun:
            self._end(upstream)

    def _end(self, upstream: UpstreamConnection | None) -> None:
        """End a response or a tunnel whose last bytes have been forwarded."""
        response, owner = self.response, self.owner
        if response is not None and owner is not None:
            end = response.on_end(upstream)
            if isinstance(end, Outcome):
                owner.complete(end, keep_alive=response.keep_alive)
            else:
                owner.fail(end)

    def on_broken(self, error: UpstreamError) -> None:
        """Process a failure to connect, or a connection that closed before the response was complete."""
        owner, attempt = self.owner, self.current
        upstream, self._target.upstream = self._target.upstream, None
        if isinstance(self.response, TunnelResponse):
            self._end(upstream)
            return
        if self._rejected_because is not None and not self._forward_withheld():
            self._after_rejection()
            return
        if owner is None:
            return
        if not self._is_begun and isinstance(error, Stale) and self._target.may_reconnect():
            self._proxy.metrics.retried(RetryReason.STALE_CONNECTION)
            self.state.enter(CONNECTING)
            self._target.reconnect(attempt, self)
        elif isinstance(error, ConnectFailed):
            attempt.unreachable(self._context, broke=False)
            owner.retry(RetryReason.CONNECT_FAILED)
        else:
            self._break_off(str(error))

    def _break_off(self, why: str) -> None:
        """Process a connection that closed before the response was complete, after the request was sent."""
        owner, attempt = self.owner, self.current
        if owner is not None and self._is_begun:
            owner.fail(broke_off(attempt, why))
        elif owner is not None:
            attempt.unreachable(self._context, broke=True)
            owner.retry(RetryReason.CLOSED_EARLY)

    def on_writable(self, writable: bool) -> None:
        """Apply the engine's back-pressure to the client's upload, or to its side of a tunnel."""
        if writable:
            self._client.resume_reading()
        elif not self._context.request.whole or isinstance(self.response, TunnelResponse):
            self._client.pause_reading()
            if not self._is_begun:
                self._target.waits_since = self._proxy.clock()

    def on_upgraded(self, headers: list[Header]) -> Tunnel:
        """Send the engine's acceptance of the upgrade to the client, and forward bytes from here on."""
        upstream, owner = self._target.upstream, self.owner
        assert upstream is not None
        assert owner is not None
        self.state.enter(TUNNEL)
        response = TunnelResponse(self._proxy, self._client, self._context, self.current, upstream, self._on_tunnel_end)
        self._is_begun, self.response = True, response
        response.accept(headers)
        return response.tunnel

    def _on_tunnel_end(self, failure: Refusal | None) -> None:
        if self.owner is not None:
            if failure is None:
                upstream, self._target.upstream = self._target.upstream, None
                self._end(upstream)
            else:
                self.owner.fail(failure)

    # what follows

    def check_awaiting(self, now: float) -> None:
        """Enforce the engine timeouts of an attempt whose response has not begun, by `now` (s)."""
        intake, target = self._intake, self._target
        if intake is not None:
            held_since = target.sent_at if intake.parser.error is None else target.waits_since
            if intake.is_late(held_since, now) and self._forward_late(intake, now):
                self.on_read(None, [], False)
                return
        has_begun = intake is not None and (intake.held != b"" or self.response is not None)
        overdue = target.overdue(now, has_begun=has_begun)
        self._follow(while_awaiting(self._proxy, self._context, self.current, overdue, now))

    def _follow(self, following: RetryReason | Refusal | None) -> bool:
        """Try another target, or end the request; returns whether one of these follows."""
        owner = self.owner
        if owner is None or following is None:
            return False
        if isinstance(following, Refusal):
            owner.end(following)
        else:
            owner.retry(following)
        return True

    def _forward_late(self, intake: AnswerIntake, now: float) -> bool:
        """Forward the beginning of a response that has been held for long; returns whether the response has begun.

        Comments commit the response to no target: the answer of another one can follow.
        """
        proxy, context, head, parser = self._proxy, self._context, self._head, intake.parser
        if parser.error is not None or parser.is_beginning:
            self._begin(intake.take_held())
            return True
        if head is not None and parser.between_records and head.is_appendable:
            response = self.response
            if response is None:
                response = self.response = response_to(
                    proxy, self._client, context, self.current, self._continuable, now
                )
            if not isinstance(response, TunnelResponse):
                response.keep_open(head, self.current, intake.take_held())
        return False

    def _refused_by_trailer(self, trailer: bytes) -> bool:
        """Continue after the agent of a peer gave up a request of which the client has comments alone."""
        if self.owner is None:
            return False
        reason = REASONS.get(trailer, _ENGINE_FAILED)
        answer = WithheldAnswer(503, trailer, is_whole=True)
        return self._follow(after_withheld(self._proxy, self._context, self.current, reason, answer))

    def check_rejection(self, now: float) -> None:
        """Stop reading a rejection that takes too long, at `now` (s)."""
        if now - self._target.waits_since > REJECTION_READ_S and not self._forward_withheld():
            self._target.drop()
            self._after_rejection()

    def _forward_withheld(self) -> bool:
        """Forward a response whose body is too long, too slow or too short to state that a model is missing; False for
        any other response that is withheld."""
        if self._rejected_because is not Withheld.MODEL_MAY_BE_MISSING:
            return False
        self._rejected_because = None
        self._begin(self._rejection)
        self.on_read(None, [], False)
        return True

    def check_response(self, now: float) -> Refusal | float:
        """Check the response of the client at `now` (s); returns when to check again (s), or the failure."""
        response, target, request = self.response, self._target, self._context.request
        assert response is not None
        waits_for_client = self.client_stalled or not (request.whole or target.write_stalled)
        due = response.check(target.time_limits.idle_s, target.waits_since, now, waits_for_client=waits_for_client)
        if not isinstance(due, Refusal) and due > now:
            target.waits_since = now
        return due

    def _after_rejection(self, *, is_whole: bool = False) -> bool:
        """Continue after a rejection was read, as a whole or in part; False if the client receives it, as a whole."""
        attempt, reason, owner, context = self.current, self._rejected_because, self.owner, self._context
        if reason is None or owner is None:
            return True
        body, head = self._rejection, self._head
        assert head is not None
        is_whole = is_whole and len(body) <= MAX_READ_BYTES
        text = beginning_of(body, coding_of(head.by_name.get(b"content-encoding", b"")))
        answer = WithheldAnswer(head.status, text, is_whole)
        following = after_withheld(self._proxy, context, attempt, reason, answer)
        if following is RetryReason.USAGE_REFUSED and self.usage is not None:
            self.usage.refused_by = attempt.endpoint_name
            withdraw_usage(context, self.usage)
            owner.retry(RetryReason.USAGE_REFUSED)
        elif following is None:
            self._rejected_because = None
        elif isinstance(following, Refusal):
            owner.end(following)
        else:
            if following in OF_ENDPOINTS and isinstance(reason, Withheld) and isinstance(attempt, LocalAttempt):
                self.differing = attempt
            if reason in NEEDS_BODY and following is not RetryReason.ENGINE_BUSY:
                self.engine_error = self._kept_error(head, attempt, body) if is_whole else None
            owner.retry(following)
        return following is not None

    def _kept_error(self, head: ResponseHead, attempt: Attempt, body: bytes) -> tuple[int, list[bytes], bytes]:
        lines = head.lines_to_client(attempt.address.host, attempt.base_path, from_peer=attempt.from_peer)
        own = self._proxy.response_headers.lines(self._context, attempt.endpoint_name)
        return head.status, [lines, own], body

    def _leaves(self, error: AnswerError) -> bool:
        """Send the request elsewhere, because its response is an error; False if the client receives the error."""
        if self.owner is None:
            return False
        return self._follow(after_error(self._proxy, self._context, self.current, error, self._proxy.clock()))

    def _begin(self, chunk: bytes) -> None:
        """Begin or continue the client's response; `chunk` is the first part of the body, empty without one."""
        attempt, head, target, owner = self.current, self._head, self._target, self.owner
        proxy, context = self._proxy, self._context
        if head is None or owner is None:
            return
        self.state.enter(STREAMING)
        self._is_begun = True
        target.waits_since = now = proxy.clock()
        if context.trace is not None:
            context.trace.note(_STREAM, now)
        attempt.progressed(now)
        if context.estimate.streaming:
            attempt.on_first_byte(now)
        if self.differing is not None and head.status < 300:
            # Other requests are not to learn that anew for as long as this response takes.
            self.differing.note_route()
        usage, response = self.usage, self.response
        if usage is not None and usage.refused_by is not None and head.status < 300:
            # The engine responds only to a request without the flag.
            proxy.usage_requests.refused(context.model, usage.refused_by, now)
        if response is None:
            response = self.response = response_to(proxy, self._client, context, attempt, self._continuable, now)
        failure = response.begin(head, attempt, target.upstream, chunk, self._intake)
        if failure is not None:
            owner.fail(failure)
