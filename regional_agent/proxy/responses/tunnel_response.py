"""An accepted upgrade as a response: a tunnel with its limits of time, and the checks of the client's messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.accounts.account import SWITCHING_PROTOCOLS, Account
from penstock.accounts.outcome_rules import Outcome, outcome_of_error, outcome_of_failure
from penstock.accounts.session_messages import SessionMessages
from penstock.http.answer_intake import AnswerIntake
from penstock.http.header_rules import Header
from penstock.http.response_head import ResponseHead
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.objects.known_objects import keep_client_object
from regional_agent.proxy.error_responses import error_format_of, message_error
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.responses.client_response import upgrade_response_head
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.websocket.client_messages import ClientMessages, Violation
from regional_agent.websocket.tunnel import Tunnel
from regional_agent.websocket.websocket_frames import GOING_AWAY, INTERNAL_ERROR, POLICY_VIOLATION, SERVER_FAILURES

_CLOSE_CODES: Final = {
    Reason.DEADLINE_PASSED: GOING_AWAY,
    Reason.SHUTTING_DOWN: GOING_AWAY,
    Reason.ENGINE_FAILED: INTERNAL_ERROR,
}
"""Status codes of Close frames of the agent; POLICY_VIOLATION for other reasons."""


class TunnelResponse:
    """The two directions of one upgraded connection. Its methods are those of `RelayedResponse`."""

    def __init__(
        self,
        proxy: Proxy,
        client: ClientConnection,
        context: RequestContext,
        attempt: Attempt,
        upstream: UpstreamConnection,
        on_end: Callable[[Refusal | None], None],
    ) -> None:
        """Connect both sides.

        `on_end` receives None when both have half-closed or the engine failed, or why the client's data ends it.
        """
        self._proxy = proxy
        self._client = client
        self._context = context
        self._attempt = attempt
        self._on_end = on_end
        self._close_code = 0
        """Status code of the Close frame that the client's data causes (RFC 6455, section 7.4); 0 without one."""
        self._is_idle = False
        self._messages = SessionMessages(proxy.answer_formats.of(context.request.route))
        self.tunnel = Tunnel(client, upstream, proxy.clock(), self._half_closed, self._messages.read)

    def accept(self, headers: list[Header]) -> None:
        """Send the acceptance of the upgrade, with the engine's `headers`, and forward bytes from here on."""
        proxy, context, attempt = self._proxy, self._context, self._attempt
        request = context.request
        if context.client_object:
            keep_client_object(context, attempt, proxy.router.requests.objects, proxy.clock())
        lines = proxy.response_headers.lines(context, attempt.endpoint_name)
        self._client.write(upgrade_response_head(request, headers, lines, attempt))
        if request.route is not None and request.route.message_model and context.route_context is None:
            messages = ClientMessages(request.route.message_model, self._refuse_model)
            self.tunnel.read_messages(messages, self._message_error, self._violated)
        self._client.tunnel_to(self.tunnel)

    def _half_closed(self) -> None:
        self._on_end(None)

    def _violated(self, violation: Violation) -> None:
        """End the tunnel because of data that must not reach the engine."""
        failure = Refusal(Reason.BAD_REQUEST, str(violation))
        self._close_code = violation.code
        self._proxy.metrics.refused(failure.reason)
        self._on_end(failure)

    def _refuse_model(self, model: str) -> Refusal | None:
        """Return why a message of the client may not name `model`; None if it may."""
        context = self._context
        if model in (context.model, context.asked_for, context.estimate.adapter):
            return None
        return self._proxy.router.reauthorization.refuse_model(context, model, self._attempt.region)

    def _message_error(self, refusal: Refusal) -> bytes:
        """Return the message for the client that reports the refusal of one of its messages."""
        self._proxy.metrics.refused(refusal.reason)
        return message_error(refusal, error_format_of(self._context.request), self._context.request_id)

    @property
    def has_begun(self) -> bool:
        """Return True: no other target can respond."""
        return True

    def begin(
        self,
        head: ResponseHead,
        attempt: Attempt,
        upstream: UpstreamConnection | None,
        chunk: bytes,
        intake: AnswerIntake | None,
    ) -> Refusal | None:
        """Not called: the bytes of a tunnel are no response."""
        return None

    def on_read(self, parts: list[bytes], ended: bool, upstream: UpstreamConnection | None) -> Refusal | Outcome | None:
        """Not called: the bytes of a tunnel are no response."""
        return None

    def on_end(self, upstream: UpstreamConnection | None) -> Refusal | Outcome:
        """Close the connection to the engine once all data is sent; a tunnel that one of its sides closes is complete.

        Returns the failure of an engine whose connection ended without a Close frame of either side.
        """
        if upstream is not None:
            upstream.close()
        if not self.tunnel.breaks_off:
            return self.outcome_without_client()
        self._attempt.failed(Outcome.ENGINE_CUT)
        return Refusal(Reason.ENGINE_FAILED, "the engine ended the connection without a Close frame")

    def check(self, idle_s: float, waits_since: float, now: float, *, waits_for_client: bool) -> Refusal | float:
        """End a tunnel that is idle or too old. Buffered data is dropped: a side that reads nothing would block it."""
        limits, reservation = self._proxy.limits, self._context.reservation
        if reservation is not None and (used := self._messages.usage) is not None:
            reservation.outgrown(float(used.prompt_tokens), float(used.answer_tokens))
        if now - self._context.received_at > limits.max_tunnel_s:
            return Refusal(Reason.DEADLINE_PASSED, "the connection is too old")
        if self.tunnel.idle_s(now) > limits.tunnel_idle_timeout_s:
            self._is_idle = True
            return Refusal(Reason.DEADLINE_PASSED, "the connection is idle")
        return now

    def move(self, failure: Refusal, now: float) -> Refusal | Outcome | None:
        """Return the failure for the client, since no other target can continue a connection."""
        return failure

    def not_moved(self, refusal: Refusal) -> Refusal:
        """Not called: no other target is asked."""
        return refusal

    def end_early(self, failure: Refusal) -> bool:
        """Send a Close frame, if none of the engine's frames is incomplete. False if the connection must break."""
        code = self._close_code or _CLOSE_CODES.get(failure.reason, POLICY_VIOLATION)
        return self.tunnel.close(code, failure.detail)

    def outcome_of(self, failure: Refusal) -> Outcome:
        """The outcome of a tunnel that the agent ended; to reach a limit of time is no failure."""
        return Outcome.OK if failure.reason is Reason.DEADLINE_PASSED else outcome_of_failure(failure.reason)

    def outcome_without_client(self) -> Outcome:
        """The outcome for a client that has disconnected, which is how a tunnel ends, unless its engine has failed.

        An error before the engine's Close frame is why the engine ended the session; after other errors it goes on.
        """
        if self.tunnel.close_code in SERVER_FAILURES:
            self._attempt.failed(Outcome.ENGINE_CUT)
            return Outcome.ENGINE_CUT
        error = self._messages.error
        if error is None or not self.tunnel.engine_closed:
            return Outcome.OK
        self._attempt.erred(error)
        return outcome_of_error(error)

    @property
    def keep_alive(self) -> bool:
        """Return False: the connection speaks another protocol."""
        return False

    @property
    def is_measured(self) -> bool:
        """Return False: the client determines how long a tunnel lasts."""
        return False

    def drop_body(self) -> bool:
        """Return False: a tunnel has no body."""
        return False

    def settle(self, account: Account) -> None:
        """Set what was forwarded. An idle tunnel ends without a reason, as one that its client ends."""
        account.status = SWITCHING_PROTOCOLS
        account.received_bytes, account.sent_bytes = self.tunnel.received_bytes, self.tunnel.sent_bytes
        account.use_session_tokens(self._messages.usage, is_estimated=self._messages.is_estimated)
        if self._is_idle:
            account.reason = ""
