"""The response of a target as the client receives it: read on the way, supervised, and ended in order.

A response that the client has begun to receive has one of three forms with the same methods: `RelayedResponse`,
`ContinuedResponse` and `TunnelResponse`. A method that detects a failure returns it, and the exchange decides what
follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome, outcome_of_error, outcome_of_failure, outcome_of_status
from penstock.answers.answer_errors import AnswerError
from penstock.http.answer_intake import AnswerIntake
from penstock.http.response_head import ResponseHead
from penstock.routing.reasons import Reason, Refusal
from regional_agent.objects.known_objects import keep_client_object, keep_created_object, keep_items
from regional_agent.proxy.error_responses import error_format_of
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.request_end import outcome_of_end
from regional_agent.proxy.responses.client_response import ClientResponse
from regional_agent.proxy.retries import asks_origin
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.routing.forwarded_attempt import REASONS, engines_failed_line
from regional_agent.upstream.upstream_connection import UpstreamConnection

MAX_CHECK_INTERVAL_S: Final = 3.0
"""Maximum time (s) between two checks of a stream: the progress of a stream shows that its endpoint is not stalled."""

CHECKS_PER_STALL: Final = 20
"""Checks of a stream within the stall timeout. A stall is detected at most one interval between checks late."""

COMMENT_CHECK_INTERVAL_S: Final = 0.5
"""Maximum time (s) between two checks of a stream that receives comments alone."""

ENDED_WITHIN_ANSWER: Final = "the connection closed within the answer"

_OK: Final = Outcome.OK
_ENGINE_FAILED: Final = Reason.ENGINE_FAILED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


def outcome_of_answer(attempt: Attempt, status: int, error: AnswerError | None, *, is_cut: bool) -> Outcome:
    """Return the outcome of a whole response; charges the endpoint of `attempt` for an error in it, or a cut answer.

    Args:
        is_cut: whether the answer is incomplete although the response has ended.
    """
    if error is None and is_cut and status < 400:
        attempt.failed(Outcome.ENGINE_CUT)
        return Outcome.ENGINE_CUT
    if error is None:
        return _OK if status < 400 else outcome_of_status(status)
    attempt.erred(error)
    return outcome_of_error(error)


def broke_off(attempt: Attempt, why: str) -> Refusal:
    """Return the failure of a response whose connection closed before its end; charges the endpoint of `attempt`."""
    attempt.failed(Outcome.ENGINE_CUT)
    return Refusal(_ENGINE_FAILED, f"the stream broke off: {why}")


class RelayedResponse:
    """The response of one target, forwarded as it arrives."""

    def __init__(
        self, proxy: Proxy, writer: ClientResponse, context: RequestContext, attempt: Attempt, now: float
    ) -> None:
        """Forward the response of `attempt` from `now` (s) on; `writer` writes it, the head first."""
        self._proxy = proxy
        self._context = context
        self.writer = writer
        self._intake: AnswerIntake | None = None
        """Reads the response; None if it is not read, and while only comments have arrived."""
        self._first_head: ResponseHead | None = None
        """The head that the client has received; None before it."""
        self.has_begun = False
        """Whether the client has received more than a head and comments, so that another target can only continue."""
        self._delivered = 0
        """The output that had arrived at the last check, as the parser counts it."""
        self._output_at = now
        """When output last arrived (s), or its last absence was the client's."""
        self._reads_ids = False
        """Whether every part of the body is read for identifiers of objects, and none is relayed."""
        self._wants_ids = False
        """Whether the response creates an object whose identifier, or the identifiers of whose items, may arrive."""
        self._has_id = False
        """Whether the identifier of the object has arrived."""
        self.has_ended = False
        """Whether the end of the response has been written."""
        self.is_measured = True
        """Whether the duration of a complete response is the service time of its last attempt."""
        self.keep_alive = False
        """Whether the response has ended, and the client connection can be used for another request."""
        self.attempt = attempt
        """The attempt whose response is forwarded."""
        self.first_byte_at: float | None = None
        """When the response began (s); None before that."""

    def keep_open(self, head: ResponseHead, attempt: Attempt, comments: bytes) -> None:
        """Send comments of a target, by which it keeps the connection open; the answer of another one can follow.

        Args:
            head: of the response that `attempt` receives; sent before the first comments.
        """
        if self._first_head is None:
            self.attempt = attempt
            self._add_head(head)
        self.writer.add(comments)
        self.writer.flush()

    def begin(
        self,
        head: ResponseHead,
        attempt: Attempt,
        upstream: UpstreamConnection | None,
        chunk: bytes,
        intake: AnswerIntake | None,
    ) -> Refusal | None:
        """Add the head, and the first part of the body, which has been read. No other target can respond from here on.

        Returns why this target cannot respond either, if the client has received the head of another one.

        Args:
            upstream: the connection whose chunks may be forwarded without this object; None if there are no more.
            chunk: empty without a body.
            intake: reads the response; None if it is not read.
        """
        request = self._context.request
        # The body is freed, since no retry is possible and the response may take minutes.
        request.body = b""
        if request.kept_bytes:
            self.writer.client.listener.bodies.drop(request)
        failure = self.open(head, attempt, intake)
        if failure is not None:
            return failure
        if chunk:
            self.writer.add(chunk)
        if upstream is not None and not self._reads_ids and b"content-length" not in head.by_name:
            self.writer.relay_from(upstream, None if intake is None else intake.parser)
        return None

    def open(self, head: ResponseHead, attempt: Attempt, intake: AnswerIntake | None) -> Refusal | None:
        """Add the head, unless the client has one; as `begin`."""
        first = self._first_head
        self.attempt, self._intake, self.has_begun = attempt, intake, True
        if first is not None:
            self._output_at = self._proxy.clock()
        self.first_byte_at = self._output_at
        if first is not None and (
            head.status != 200 or b"content-encoding" in head.by_name or head.media_type != first.media_type
        ):
            return Refusal(_ENGINE_FAILED, f"the engine responded with status {head.status}, after comments of another")
        if first is None:
            self._add_head(head)
        route = self._context.request.route
        if self._context.client_object or (route is not None and route.creates_objects):
            self._note_objects(head)
        return None

    def _add_head(self, head: ResponseHead) -> None:
        proxy, context, attempt, intake = self._proxy, self._context, self.attempt, self._intake
        request, writer = context.request, self.writer
        self._first_head = head
        if context.estimate.streaming and context.route_context is None:
            writer.gaps = proxy.metrics.streams.begin(context.model)
        lines = head.lines_to_client(attempt.address.host, attempt.base_path, from_peer=attempt.from_peer)
        lines += proxy.response_headers.lines(context, attempt.endpoint_name) + request.cors_lines
        if head.status >= 400 and asks_origin(context, attempt, head.status):
            failed = context.failed_here(int(not context.lacks_model))
            lines += engines_failed_line(failed, broke=context.may_end_engines)
        writer.start(head, lines, keeps_length=intake is None or not intake.parser.hides_usage)

    def _note_objects(self, head: ResponseHead) -> None:
        """Record the object that the response is about."""
        context, intake, route = self._context, self._intake, self._context.request.route
        if context.client_object and 200 <= head.status < 300:
            keep_client_object(context, self.attempt, self._proxy.router.requests.objects, self._output_at)
        if intake is not None and route is not None and route.object_id and route.creates_objects:
            self._wants_ids = self._reads_ids = True
            self._keep_objects()

    def _keep_objects(self) -> None:
        """Record the locations of the object that the response creates, and of its items, once they have arrived."""
        parser = None if self._intake is None else self._intake.parser
        if parser is None or not self._wants_ids:
            return
        objects, now = self._proxy.router.requests.objects, self._proxy.clock()
        if parser.ids.object_id and not self._has_id:
            self._has_id = True
            keep_created_object(self._context, self.attempt, parser.ids.object_id, objects, now)
        if parser.ids.item_ids:
            self._wants_ids = False
            keep_items(self._context, self.attempt, parser.ids.item_ids, objects, now)

    def on_read(self, parts: list[bytes], ended: bool, upstream: UpstreamConnection | None) -> Refusal | Outcome | None:
        """Forward a read of the body. Returns the failure, or, at the end of a whole response, its outcome.

        Args:
            ended: whether these are the last parts, which arrived over `upstream`.
        """
        intake = self._intake
        if intake is not None:
            parts = [intake.parser.feed(part) for part in parts]
            self._keep_objects()
        if ended and not (intake is not None and intake.breaks_off()):
            return self._end(parts, upstream)
        for part in parts:
            self.writer.add(part)
        return broke_off(self.attempt, ENDED_WITHIN_ANSWER) if ended else None

    def on_end(self, upstream: UpstreamConnection | None) -> Refusal | Outcome:
        """Write the end of a whole response, which arrived over `upstream`; as `on_read`."""
        return self._end([], upstream)

    def _end(self, parts: list[bytes], upstream: UpstreamConnection | None) -> Refusal | Outcome:
        """Write the last parts and the end; returns the failure that a peer reports, or the outcome."""
        if self._intake is not None:
            parts = [*parts, self._intake.rest + self._intake.parser.finish(complete=True)]
            self._keep_objects()
        outcome = self.outcome()
        return self.write_end(upstream, parts) or outcome

    def write_end(self, upstream: UpstreamConnection | None, parts: Sequence[bytes] = ()) -> Refusal | None:
        """Write the last parts and the end; returns the failure that a peer reports in a trailer."""
        self.writer.end(parts)
        self.has_ended, self.keep_alive = True, self.writer.keep_alive
        trailer = upstream.error_trailer if upstream is not None and self.attempt.from_peer else b""
        return Refusal(REASONS.get(trailer, _ENGINE_FAILED), "") if trailer else None

    def check(
        self, idle_s: float, waits_since: float, now: float, *, waits_for_client: bool, delivered: int = -1
    ) -> Refusal | float:
        """Detect a response that stopped arriving at `now` (s); returns the failure, or the time of the next check (s).

        That time is `now` if no data has arrived since the last check, and the client waits for data. Comments and
        pings are data, but no progress of the endpoint: a server can send them while its engine is frozen.

        Args:
            idle_s: maximum time (s) without data.
            waits_since: when data last arrived (s), or its last absence was the client's.
            waits_for_client: whether the client does not read, or has not sent its whole request.
            delivered: a count that grows with the output; negative for that of the parser.
        """
        writer = self.writer
        has_news, writer.has_news = writer.has_news, False
        has_output = has_news and self._has_output(delivered)
        if has_output:
            self.attempt.progressed(now)
            if self._context.reservation is not None:
                self._context.reservation.answer_grew(float(self._delivered), has_arrived=True)
        if has_output or waits_for_client:
            self._output_at = now
        elif has_news or now - waits_since <= idle_s:
            self.attempt.waits_for_chunk(self._output_at, now)
        else:
            self.attempt.failed(Outcome.STALLED)
            return Refusal(Reason.STREAM_STALLED, f"no data for {idle_s:g} s")
        if not (has_news or waits_for_client):
            return now
        interval_s = min(idle_s / CHECKS_PER_STALL, MAX_CHECK_INTERVAL_S)
        return now + (interval_s if self._output_at == now else min(interval_s, COMMENT_CHECK_INTERVAL_S))

    def _has_output(self, delivered: int) -> bool:
        """Whether output has arrived since the last check, and not only comments and pings."""
        if delivered < 0:
            if self._intake is None or not self._intake.parser.counts_output:
                return True
            delivered = self._intake.parser.delivered
        before, self._delivered = self._delivered, delivered
        return delivered != before

    def move(self, failure: Refusal, now: float) -> Refusal | Outcome | None:
        """Return the failure for the client; the outcome, which ends the stream, if its end or an error has arrived."""
        parser = None if self._intake is None else self._intake.parser
        if self.has_ended or parser is None or self.writer.has_length:
            return failure
        parser.finish(complete=False)
        if parser.is_cut or not (parser.ended or (parser.error is not None and parser.counts_output)):
            return failure
        self.is_measured = False
        self.attempt.failed(_OK)
        self.on_end(None)
        return self.outcome()

    def not_moved(self, refusal: Refusal) -> Refusal:
        """The failure for the client if no target accepts a request of which it has comments alone."""
        return refusal

    def end_early(self, failure: Refusal) -> bool:
        """End a response that failed: with an error event if it is an event stream. False if the connection must break.

        A response of a peer may be complete, and contain the error, although it failed.
        """
        if self.has_ended:
            self.writer.cut()
            return True
        context = self._context
        to_peer = context.route_context is not None
        has_error = self.writer.end_with_error(
            failure, error_format_of(context.request), context.request_id, to_peer=to_peer
        )
        # Not closed: the client may be sending its next request.
        self.keep_alive = has_error and self.writer.keep_alive
        return has_error

    def outcome(self) -> Outcome:
        """The outcome of a response that the client received as a whole."""
        if self._intake is None:
            return outcome_of_answer(self.attempt, self.writer.status, None, is_cut=False)
        parser = self._intake.parser
        return outcome_of_answer(self.attempt, self.writer.status, parser.error, is_cut=parser.is_cut)

    def outcome_of(self, failure: Refusal) -> Outcome:
        """The outcome of a response that failed, or, if it has not begun, of a request that is refused."""
        context = self._context
        if not self.has_begun:
            return outcome_of_end(context, failure)
        return outcome_of_failure(failure.reason, own_deadline=context.own_deadline)

    def outcome_without_client(self) -> Outcome:
        """The outcome for a client that has disconnected: some clients do so once they have the end of the answer."""
        if self._intake is None:
            return Outcome.CLIENT_LEFT
        self._intake.parser.finish(complete=False)
        return self.outcome() if self._intake.parser.is_finished else Outcome.CLIENT_LEFT

    def drop_body(self) -> bool:
        """Drop the kept body of the request; False, since it is dropped when the response begins."""
        return False

    def settle(self, account: Account) -> None:
        """Set what the client received, and the usage."""
        intake, complete = self._intake, account.outcome is _OK
        self.count_in(account)
        if intake is not None and 200 <= account.status < 300:
            if not self.has_ended:
                intake.parser.finish(complete=complete)
            intake.settle(account, self._context.estimate, complete=complete)

    def count_in(self, account: Account) -> None:
        """Set what the client received."""
        writer = self.writer
        account.status, account.first_byte_at, account.sent_bytes = writer.status, self.first_byte_at, writer.sent_bytes
