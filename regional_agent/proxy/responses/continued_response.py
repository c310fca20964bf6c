"""A streamed response that another target continues, after its endpoint or its serving region failed.

Only the agent that received the client's request continues an answer; the agent of another serving region ends its
stream with an error.
"""

from __future__ import annotations

from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome, outcome_of_error
from penstock.answers.answer_errors import AnswerError
from penstock.answers.event_splitter import event_fields
from penstock.answers.usage_reader import ReportedUsage, UsagePlaces, members_of
from penstock.continuation.continuable_request import ContinuableRequest
from penstock.continuation.continued_stream import ContinuedStream
from penstock.continuation.stream_usage import opted_in
from penstock.http.answer_intake import AnswerIntake
from penstock.http.response_head import ResponseHead
from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S
from penstock.retries.retry_rules import MAX_ATTEMPTS
from penstock.routes.route import UsageFields
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.responses.client_response import ClientResponse
from regional_agent.proxy.responses.relayed_response import (
    ENDED_WITHIN_ANSWER,
    RelayedResponse,
    broke_off,
    outcome_of_answer,
)
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.telemetry.label_values import ContinuationOutcome
from regional_agent.upstream.upstream_connection import UpstreamConnection

MAX_CONTINUATIONS: Final = 2
"""Maximum number of continuations of one answer."""

_ENGINE_FAILED: Final = Reason.ENGINE_FAILED
_OK: Final = Outcome.OK
_PLACES: Final = UsagePlaces(UsageFields())
_STOPPED: Final = Reason.SHUTTING_DOWN.value
_OF_LOSS: Final = frozenset({_ENGINE_FAILED.value, _STOPPED})
"""Reasons by which a serving region reports that an endpoint or an agent of it is gone."""
_OF_CAPACITY: Final = frozenset({Reason.ENGINE_FAILED, Reason.NONE_READY, Reason.SATURATED})
"""Reasons that report only that no target continues the answer: the client receives the failure of the stream."""


class ContinuedResponse:
    """The response of several targets, one after the other, that the client receives as one stream.

    Its methods are those of `RelayedResponse`.
    """

    def __init__(
        self,
        proxy: Proxy,
        context: RequestContext,
        relayed: RelayedResponse,
        asked: ContinuableRequest,
    ) -> None:
        """Continue the stream when it fails.

        Args:
            relayed: the response to the client, which does not read what it forwards.
            asked: the request, which asks for the usage of each chunk.
        """
        self._proxy = proxy
        self._context = context
        self._relayed = relayed
        self._stream = ContinuedStream(asked)
        self._intake: AnswerIntake | None = None
        """Reads the first response for the account. None before it has begun, and once another target continues the
        answer, whose usage then is that of several streams."""
        self._body = context.request.body
        """The body of the client's request; `request.body` may be the body of a continuation."""
        self._failed_endpoints: frozenset[str] = frozenset()
        self._failed_regions: list[str] = []
        self._failure = Refusal(_ENGINE_FAILED, "")
        """How the stream failed."""
        self._reported: AnswerError | None = None
        """The error by which the engine reported how the stream failed; None if it reported none."""
        self._failed_at_end = False
        """Whether the stream failed after the answer was complete."""
        self._may_move = True
        """Whether another target may be asked to continue the answer."""

    def keep_open(self, head: ResponseHead, attempt: Attempt, comments: bytes) -> None:
        """Send comments of a target; see `RelayedResponse.keep_open`."""
        self._relayed.keep_open(head, attempt, comments)

    @property
    def writer(self) -> ClientResponse:
        """What writes the response to the client."""
        return self._relayed.writer

    @property
    def has_begun(self) -> bool:
        """Whether the client has received more than a head and comments."""
        return self._relayed.has_begun

    def begin(
        self,
        head: ResponseHead,
        attempt: Attempt,
        upstream: UpstreamConnection | None,
        chunk: bytes,
        intake: AnswerIntake | None,
    ) -> Refusal | None:
        """Add the head of the first response, or check the head of a further one; then add the first events."""
        relayed = self._relayed
        relayed.attempt = attempt
        if not self._context.continuations:
            if self._context.request.body_dropped:
                self.drop_body()
            self._intake = intake
            failure = relayed.open(head, attempt, None)
            if failure is not None:
                self._may_move = False
                return failure
            if upstream is not None:
                # Only the events that `catch_up` can count are forwarded without this object.
                relayed.writer.relay_from(upstream, None, self._stream.next_events)
        elif head.status == 200 and head.is_event_stream:
            self._count(ContinuationOutcome.RESUMED)
            self._reported = self._stream.reported = None
        else:
            self._may_move = False
            return self.not_moved(Refusal(_ENGINE_FAILED, f"the engine responded with status {head.status}"))
        if not chunk:
            return None
        return self._add(self._stream.feed(chunk))

    def on_read(self, parts: list[bytes], ended: bool, upstream: UpstreamConnection | None) -> Refusal | Outcome | None:
        """Forward the complete events of a read; see `RelayedResponse.on_read`."""
        intake, relayed = self._intake, self._relayed
        self._catch_up()
        for part in parts:
            if intake is not None:
                intake.parser.feed(part)
            failure = self._add(self._stream.feed(part))
            if failure is not None:
                return failure
        if not ended:
            return None
        if intake is not None and intake.breaks_off():
            return broke_off(relayed.attempt, ENDED_WITHIN_ANSWER)
        return self.on_end(upstream)

    def on_end(self, upstream: UpstreamConnection | None) -> Refusal | Outcome:
        """Write the end of the stream, if the answer is complete."""
        return self._add(self._stream.end()) or self._relayed.write_end(upstream) or self.outcome()

    def _add(self, events: bytes) -> Refusal | None:
        relayed = self._relayed
        relayed.writer.has_news = True
        if events:
            relayed.writer.add(events)
        if not self._stream.failure:
            return None
        self._reported = self._stream.reported
        if self._reported is None:
            relayed.attempt.failed(Outcome.ENGINE_CUT)
        else:
            relayed.attempt.erred(self._reported)
        return Refusal(_ENGINE_FAILED, f"the stream broke off: {self._stream.failure}")

    def _catch_up(self) -> None:
        """Read the events that were forwarded without this object."""
        taken = len(self._stream.next_events.texts)
        if taken:
            last = self._stream.catch_up()
            if self._intake is not None:
                self._intake.parser.delivered += taken - 1
                self._intake.parser.feed(last)

    def check(self, idle_s: float, waits_since: float, now: float, *, waits_for_client: bool) -> Refusal | float:
        """Detect a stream that stopped arriving, or whose endpoint or region has failed."""
        self._catch_up()
        delivered = self._stream.records
        due = self._relayed.check(idle_s, waits_since, now, waits_for_client=waits_for_client, delivered=delivered)
        if isinstance(due, Refusal) or due > now:
            return due
        attempt = self._relayed.attempt
        if attempt.peer_failed():
            return Refusal(_ENGINE_FAILED, "the serving region has failed")
        if attempt.stall() is not None and self._may_leave(now):
            return Refusal(Reason.STREAM_STALLED, "the endpoint makes no progress")
        return due

    def _may_leave(self, now: float) -> bool:
        """Whether another target can continue the stream as far as it has arrived, or needs not."""
        context, stream, proxy = self._context, self._stream, self._proxy
        if stream.done:
            return True
        if stream.problem or not opted_in(proxy.router.reauthorization.policy, context.model):
            return False
        if context.continuations >= MAX_CONTINUATIONS or not proxy.retry_budget.allows_one(now):
            return False
        if context.attempts >= MAX_ATTEMPTS or context.failures_left <= 0:
            return False
        context.extends_text = stream.has_text
        tried = self._failed_endpoints | {self._relayed.attempt.endpoint_name}
        return proxy.router.has_other_target(context, tried, now)

    def move(self, failure: Refusal, now: float) -> Refusal | Outcome | None:
        """Make the request continue the answer; or return the outcome, which ends the response, if it is complete.

        Returns the failure for the client if neither is possible.
        """
        self._catch_up()
        context, stream, relayed = self._context, self._stream, self._relayed
        if not self._may_move or relayed.has_ended:
            return failure
        self._failure = failure
        if stream.done:
            self._failed_at_end = True
            relayed.write_end(None)
            return _OK
        if stream.problem:
            return self._refuse(stream.problem, ContinuationOutcome.NOT_CONTINUABLE)
        if not opted_in(self._proxy.router.reauthorization.policy, context.model):
            return self._refuse("the policy does not permit it", ContinuationOutcome.NOT_CONTINUABLE)
        if context.continuations >= MAX_CONTINUATIONS:
            return self._refuse(f"it was continued {MAX_CONTINUATIONS} times", ContinuationOutcome.OVER_BUDGET)
        if not self._is_lost() and not self._proxy.retry_budget.withdraw(now):
            return self._refuse("the retry budget is used up", ContinuationOutcome.OVER_BUDGET)
        self._exclude(relayed.attempt, reported=bool(stream.failure))
        context.continuations += 1
        self._intake = None
        context.extends_text = stream.has_text
        model = context.policy.models.get(context.model)
        max_wait_s = DEFAULT_MAX_WAIT_S if model is None else model.max_wait_s
        context.max_wait_s = now - context.received_at + max_wait_s
        body = stream.next_body(self._body)
        stream.next_stream()
        if body is None:
            self._count(ContinuationOutcome.RESUMED)
            if end := stream.finish_at_limit():
                relayed.writer.add(end)
            relayed.write_end(None)
            return _OK
        context.request.body, context.request.length = body, len(body)
        relayed.writer.flush()
        return None

    def _is_lost(self) -> bool:
        """Whether the stream failed for the first time, because its endpoint or its region is gone.

        It then needs no more than it had. A stall, and an error that an engine reports, may be that of an overload.
        """
        stream = self._stream
        if self._context.continuations or self._failure.reason is not _ENGINE_FAILED:
            return False
        return not stream.failure or (self._relayed.attempt.from_peer and stream.reason_elsewhere in _OF_LOSS)

    def not_moved(self, refusal: Refusal) -> Refusal:
        """The failure for the client if no target continues the answer; the refusal of an answer that has not begun."""
        if not self.has_begun:
            return refusal
        problem = refusal.detail
        if refusal.reason is Reason.NONE_READY and self._context.extends_text:
            problem = "no other endpoint of an engine that continues texts (vLLM, SGLang) is ready"
        failure = self._refuse(problem, ContinuationOutcome.NO_TARGET)
        return failure if refusal.reason in _OF_CAPACITY else Refusal(refusal.reason, failure.detail)

    def _refuse(self, problem: str, outcome: ContinuationOutcome) -> Refusal:
        self._count(outcome)
        return Refusal(self._failure.reason, f"{self._failure.detail}; not continued: {problem}")

    def _exclude(self, attempt: Attempt, *, reported: bool) -> None:
        """Exclude the failed targets, except a region that reported the failure: its agent evaluates the endpoint."""
        context, attempts = self._context, self._context.attempts
        if not attempt.from_peer:
            self._failed_endpoints |= {attempt.endpoint_name}
        elif not reported:
            self._failed_regions.append(attempt.region)
        is_stop = attempt.from_peer and self._stream.reason_elsewhere == _STOPPED
        if self._failure.reason is _ENGINE_FAILED and (reported or not attempt.from_peer) and not is_stop:
            context.may_end_engines = True
            if attempt.from_peer:
                context.failed_elsewhere += 1
            else:
                context.broken += 1
        context.forget_tries()
        context.attempts = attempts
        context.tried_endpoints = self._failed_endpoints
        for region in self._failed_regions:
            context.tried(region, Reason.UNREACHABLE)

    def _count(self, outcome: ContinuationOutcome) -> None:
        self._proxy.metrics.stream_failed(outcome)

    def end_early(self, failure: Refusal) -> bool:
        """End a response that failed; see `RelayedResponse.end_early`."""
        return self._relayed.end_early(failure)

    def outcome(self) -> Outcome:
        """The outcome of a response that the client received as a whole."""
        relayed, stream = self._relayed, self._stream
        return outcome_of_answer(relayed.attempt, relayed.writer.status, stream.error, is_cut=stream.is_cut)

    def outcome_of(self, failure: Refusal) -> Outcome:
        """The outcome of a response that failed."""
        if self._reported is not None and failure.reason is _ENGINE_FAILED:
            return outcome_of_error(self._reported)
        return self._relayed.outcome_of(failure)

    def outcome_without_client(self) -> Outcome:
        """The outcome for a client that has disconnected."""
        return self.outcome() if self._stream.done else Outcome.CLIENT_LEFT

    @property
    def keep_alive(self) -> bool:
        """Whether the client connection can be used for another request."""
        return self._relayed.keep_alive

    @property
    def is_measured(self) -> bool:
        """Whether one attempt generated the whole answer, and the stream ended with the answer."""
        return not self._context.continuations and not self._failed_at_end

    def drop_body(self) -> bool:
        """Release the body, whose memory another tenant needs; the answer cannot be continued afterwards."""
        self._body = b""
        self._stream.give_up("the request body was not kept")
        return True

    def settle(self, account: Account) -> None:
        """Set what the client received, and the usage, in the account of the request."""
        self._catch_up()
        self._relayed.count_in(account)
        if not (self.has_begun and 200 <= account.status < 300):
            return
        stream, reported, intake = self._stream, ReportedUsage(_PLACES), self._intake
        is_final = stream.done or account.outcome is _OK
        if intake is not None:
            intake.parser.finish(complete=is_final)
            intake.settle(account, self._context.estimate, complete=is_final)
            return
        _, data = event_fields(stream.usage_event)
        fields = members_of(data) if data is not None else None
        if fields is not None:
            reported.read(fields)
        usage, generated = reported.usage, stream.generated_tokens
        # The last report may be that of a stream that failed, and not of the streams after it.
        is_final = is_final and usage is not None and usage.answer_tokens >= generated
        account.use_tokens(self._context.estimate, usage, generated, is_final=is_final)


def response_to(
    proxy: Proxy,
    client: ClientConnection,
    context: RequestContext,
    attempt: Attempt,
    asked: ContinuableRequest | None,
    now: float,
) -> RelayedResponse | ContinuedResponse:
    """Return the response that begins with that of `attempt` at `now` (s); other targets can continue it if `asked`."""
    relayed = RelayedResponse(proxy, ClientResponse(client, context.request), context, attempt, now)
    return relayed if asked is None else ContinuedResponse(proxy, context, relayed, asked)
