"""The response of a picked endpoint as it passes through Envoy: read for its usage, its errors and its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome, outcome_of_failure
from penstock.answers.answer_errors import AnswerError
from penstock.continuation.stream_usage import StreamUsage
from penstock.http.answer_intake import intake_of
from penstock.http.header_rules import REFUSAL_HEADER, Header
from penstock.http.response_head import ResponseHead
from penstock.routing.reasons import Reason
from regional_agent.objects.known_objects import keep_client_object, keep_created_object, keep_items
from regional_agent.picker import grpc_requests
from regional_agent.picker.envoy_responses import headers_of_lines
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.responses.relayed_response import outcome_of_answer
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.routing.forwarded_attempt import REASONS

_OK: Final = Outcome.OK

_WITHOUT_STATUS: Final = 500
"""HTTP status of UNKNOWN, which a response over gRPC without a status has."""


class ObservedResponse:
    """One response, whose bytes Envoy forwards as this object returns them."""

    def __init__(
        self,
        proxy: Proxy,
        context: RequestContext,
        attempt: Attempt | None,
        head: ResponseHead,
        usage: StreamUsage | None,
        now: float,
    ) -> None:
        """Begin to read a response at `now` (s).

        Args:
            attempt: the attempt that the response is of; None if an endpoint that the agent does not have responds.
            usage: what the agent asked the engine to report; None if the response is no stream.
        """
        self._proxy = proxy
        self._context = context
        self._attempt = attempt
        self._streaming = context.estimate.streaming
        route = context.request.route
        hides_usage = usage is not None and usage.is_hidden
        self._intake = intake_of(proxy.answer_formats, route, head, context.estimate, hides_usage=hides_usage)
        self._may_hold = False
        """Whether the beginning of the response is held until it is no error."""
        self._decided = False
        self._wants_ids = self._intake is not None and route is not None and route.creates_objects
        self._has_id = False
        """Whether the identifier of the object that the response creates has arrived."""
        self._status = head.status
        self._failure: Reason | None = None
        """Why the response is incomplete, as the agent of another region states at its end."""
        self._began_at = now
        self._first_byte_at: float | None = None
        self._delivered = 0
        """The output that has arrived, as the parser counts it."""
        self._sent_bytes = 0
        self.ended = False
        """Whether the end of the response has arrived."""
        if attempt is not None and context.client_object and 200 <= head.status < 300:
            keep_client_object(context, attempt, proxy.router.requests.objects, now)

    def hold_beginning(self) -> None:
        """Hold the beginning of the response until it is no error."""
        self._may_hold = self._intake is not None

    def release_late(self, sent_at: float, now: float) -> bytes:
        """Return what is held of a stream that has been held for long at `now` (s), and hold no more; else empty bytes.

        The later events of a stream, and those after its comments, may be long in coming.

        Args:
            sent_at: when the request was sent (s).
        """
        intake, late = self._intake, b""
        if self._streaming and self.is_held and intake is not None and intake.is_late(sent_at, now):
            self._may_hold, late = False, intake.take_held()
            self._sent_bytes += len(late)
        return late

    def headers(self, head: ResponseHead) -> list[Header]:
        """Return the headers of the response as the client receives it."""
        context, attempt, proxy = self._context, self._attempt, self._proxy
        host, base_path, from_peer, endpoint = "", b"", False, ""
        if attempt is not None:
            host, base_path = attempt.address.host, attempt.base_path
            from_peer, endpoint = attempt.from_peer, attempt.endpoint_name
        lines = head.lines_to_client(host, base_path, from_peer=from_peer)
        lines += proxy.response_headers.lines(context, endpoint) + context.request.cors_lines
        return headers_of_lines(lines)

    def on_body(self, chunk: bytes, now: float) -> bytes:
        """Read a part of the body at `now` (s); returns what the client receives."""
        intake = self._intake
        if intake is None and chunk:
            self._note_output(now)
        if intake is not None and chunk:
            if self._decided:
                chunk = intake.parser.feed(chunk)
            else:
                self._decided = intake.begin(chunk)
                chunk = intake.take_held() if self._decided or not self._may_hold else b""
                if intake.is_media:
                    self._intake = None
            self._keep_objects(now)
            parser = intake.parser
            # Comments, blank lines and pings are no output: a server can send them while its engine is frozen.
            if not parser.between_records and (
                self._first_byte_at is None or not parser.counts_output or parser.delivered != self._delivered
            ):
                self._delivered = parser.delivered
                self._note_output(now)
                if self._context.reservation is not None:
                    self._context.reservation.answer_grew(float(parser.delivered), has_arrived=True)
        self._sent_bytes += len(chunk)
        return chunk

    def _note_output(self, now: float) -> None:
        """Record that output has arrived at `now` (s)."""
        attempt = self._attempt
        if self._first_byte_at is None:
            self._first_byte_at = now
            if attempt is not None and self._streaming:
                attempt.on_first_byte(now)
        if attempt is not None:
            attempt.progressed(now)

    def use_trailers(self, trailers: Sequence[Header], *, over_grpc: bool) -> None:
        """Use the status in the trailers of a response over gRPC, as an HTTP status; one without it has failed.

        In those of another region, use why the response is incomplete.
        """
        if self._attempt is not None and self._attempt.from_peer:
            reason = dict(trailers).get(REFUSAL_HEADER)
            self._failure = None if reason is None else REASONS.get(reason, Reason.ENGINE_FAILED)
        elif over_grpc and self._status == 200:
            self._status = grpc_requests.http_status(trailers) or _WITHOUT_STATUS

    def on_end(self, now: float) -> bytes:
        """Read the end of the body at `now` (s); returns what the client receives before it."""
        self.ended, rest = True, b""
        if self._first_byte_at is None:
            self._first_byte_at = now
        if self._intake is not None:
            rest = self._intake.parser.finish(complete=True)
            if self._may_hold and not self._decided:
                rest = self._intake.take_held() + rest
            self._keep_objects(now)
        self._sent_bytes += len(rest)
        return rest

    @property
    def is_held(self) -> bool:
        """Whether the beginning of the response is held, because it may be the beginning of an error."""
        return self._may_hold and not (self._decided or self.ended)

    @property
    def first_error(self) -> AnswerError | None:
        """The error that the response is, if its beginning was held."""
        return self._intake.error if self._may_hold and self._intake is not None else None

    def _keep_objects(self, now: float) -> None:
        """Record the locations of the object that the response creates, and of its items, once they have arrived."""
        attempt, parser = self._attempt, None if self._intake is None else self._intake.parser
        if parser is None or attempt is None or not self._wants_ids:
            return
        objects = self._proxy.router.requests.objects
        if parser.ids.object_id and not self._has_id:
            self._has_id = True
            keep_created_object(self._context, attempt, parser.ids.object_id, objects, now)
        if parser.ids.item_ids:
            self._wants_ids = False
            keep_items(self._context, attempt, parser.ids.item_ids, objects, now)

    def outcome(self) -> Outcome:
        """The outcome of a whole response; charges the endpoint for an error in it."""
        if self._failure is not None:
            return outcome_of_failure(self._failure, own_deadline=self._context.own_deadline)
        if self._attempt is None:
            return _OK if self._status < 400 else Outcome.ENGINE_ERROR
        parser = None if self._intake is None else self._intake.parser
        if parser is None:
            return outcome_of_answer(self._attempt, self._status, None, is_cut=False)
        # To Envoy, a response that a close ends is always complete.
        is_cut = parser.is_cut or (self.ended and parser.is_short)
        return outcome_of_answer(self._attempt, self._status, parser.error, is_cut=is_cut)

    def has_answer(self) -> bool:
        """Whether a whole answer has arrived, or an error, although Envoy does not send the end of the response."""
        if self._intake is None:
            return False
        self._intake.parser.finish(complete=False)
        return self._intake.parser.is_finished

    def ended_as(self, reported: Outcome | None) -> Outcome:
        """Charge the endpoint by the outcome in Envoy's access log, if it is known; return that of the request."""
        if reported is None:
            return Outcome.CLIENT_LEFT
        if self._attempt is not None:
            self._attempt.failed(reported)
        return reported

    def settle(self, account: Account) -> None:
        """Set what the client received, and the usage; nothing if the response is still held."""
        if self.is_held:
            return
        account.status, account.sent_bytes = self._status, self._sent_bytes
        account.first_byte_at = self._first_byte_at
        if self._first_byte_at is None and not self._sent_bytes:
            account.first_byte_at = self._began_at
        complete = account.outcome is _OK
        if self._intake is not None and 200 <= self._status < 300:
            if not self.ended:
                self._intake.parser.finish(complete=complete)
            self._intake.settle(account, self._context.estimate, complete=complete)
