"""Continues a streamed answer at another target, after its endpoint or its serving region failed.

Only the agent that received the client's request continues an answer; the agent of another serving region ends its
stream with an error.
"""

from __future__ import annotations

from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcomes import Outcome
from penstock.answers.event_splitter import event_fields
from penstock.answers.usage_report import ReportedUsage, UsagePlaces, members_of
from penstock.continuation.continuable_request import ContinuableRequest, body_with_usage, continuable_request
from penstock.continuation.continued_stream import ContinuedStream
from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S
from penstock.policy.policy import Policy
from penstock.pools.placement import WorkEstimate
from penstock.routes.route import UsageFields
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.proxy.exchange_services import ExchangeServices
from regional_agent.proxy.upstream_request import ask_for_identity
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.telemetry.outcomes import ContinuationOutcome
from regional_agent.upstream.response_head import ResponseHead

MAX_CONTINUATIONS: Final = 2
"""Maximum number of continuations of one answer."""

_ENGINE_FAILED: Final = Reason.ENGINE_FAILED
_OK: Final = Outcome.OK
_PLACES: Final = UsagePlaces(UsageFields())
_OF_CAPACITY: Final = frozenset({Reason.ENGINE_FAILED, Reason.NONE_READY, Reason.SATURATED})
"""Reasons that report only that no target continues the answer: the client receives the failure of the stream."""


def request_chunk_usage(context: RequestContext, request: Request) -> ContinuableRequest | None:
    """Request the usage of each chunk from the engine, if the stream can be continued; None if it cannot be.

    Changes the body of the request, so it must be called once, before a target is selected.
    """
    if not _opted_in(context.policy, context.model) or context.route_context is not None:
        return None
    if request.http_1_0 or not request.whole or request.body_dropped:
        return None
    continuable = continuable_request(request.path, request.body)
    if isinstance(continuable, str):
        return None
    request.body = body_with_usage(continuable, request.body)
    request.length = len(request.body)
    ask_for_identity(request)
    return continuable


def continuation_of(
    services: ExchangeServices,
    context: RequestContext,
    request: Request,
    head: ResponseHead,
    continuable: ContinuableRequest,
) -> StreamContinuation | None:
    """The continuation of a response; None if the response is not an event stream that can be continued.

    Args:
        head: the head of the response.
        continuable: the result of `request_chunk_usage`.
    """
    by_name = head.by_name
    if head.status != 200 or not head.is_event_stream or b"content-length" in by_name or b"content-encoding" in by_name:
        return None
    continuation = StreamContinuation(services, context, request, ContinuedStream(continuable))
    if request.body_dropped:
        continuation.forget_body()
    return continuation


class StreamContinuation:
    """The stream of one exchange, and the state of its continuations."""

    __slots__ = (
        "_body",
        "_context",
        "_failed_endpoints",
        "_failed_regions",
        "_failure",
        "_request",
        "_services",
        "detail",
        "end",
        "stream",
    )

    def __init__(
        self, services: ExchangeServices, context: RequestContext, request: Request, stream: ContinuedStream
    ) -> None:
        """Continue `stream`, the response to `request`, when it fails."""
        self._services = services
        self._context = context
        self._request = request
        self._body = request.body
        """The body of the client's request; `request.body` may be the body of a continuation."""
        self._failed_endpoints: frozenset[str] = frozenset()
        self._failed_regions: list[str] = []
        self._failure = Refusal(_ENGINE_FAILED, "")
        self.stream = stream
        self.end: bytes | None = None
        """The last bytes of an answer that is complete; None while a target has to continue the answer."""
        self.detail = ""
        """How the stream failed, and why it was not continued, for the client."""

    def settle(self, account: Account, estimate: WorkEstimate) -> None:
        """Set the usage in the account of the request."""
        reported = ReportedUsage(_PLACES)
        _, data = event_fields(self.stream.usage_event)
        fields = members_of(data) if data is not None else None
        if fields is not None:
            reported.read(fields)
        is_final = self.stream.done or account.outcome is _OK
        account.use_tokens(estimate, reported.usage, self.stream.generated_tokens, is_final=is_final)

    def forget_body(self) -> None:
        """Release the body, whose memory another tenant needs; the answer cannot be continued afterwards."""
        self._body = b""
        self.stream.give_up("the request body was not kept")

    @property
    def is_possible(self) -> bool:
        """Whether another target can continue the stream as far as it has arrived, or needs not."""
        if self.stream.done:
            return True
        context = self._context
        opted_in = _opted_in(self._services.router.reauthorization.policy, context.model)
        return opted_in and not self.stream.problem and context.continuations < MAX_CONTINUATIONS

    def prepare(self, attempt: Attempt, failure: Refusal, now: float) -> bool:
        """Make the request continue the answer, or set `end` if the answer is complete; False if neither is possible.

        Args:
            attempt: the attempt that failed.
            failure: how the attempt failed.
            now: by the agent's clock (s).
        """
        context, stream = self._context, self.stream
        self._failure, self.detail = failure, failure.detail
        if stream.done:
            self.end = b""
            return True
        if stream.problem:
            return self._refuse(stream.problem, ContinuationOutcome.NOT_CONTINUABLE)
        if not _opted_in(self._services.router.reauthorization.policy, context.model):
            return self._refuse("the policy does not permit it", ContinuationOutcome.NOT_CONTINUABLE)
        if context.continuations >= MAX_CONTINUATIONS:
            return self._refuse(f"it was continued {MAX_CONTINUATIONS} times", ContinuationOutcome.OVER_BUDGET)
        if not self._services.retry_budget.withdraw(now):
            return self._refuse("the retry budget is used up", ContinuationOutcome.OVER_BUDGET)
        self._exclude(attempt, reported=bool(stream.failure))
        context.continuations += 1
        context.extends_text = stream.has_text
        model = context.policy.models.get(context.model)
        max_wait_s = DEFAULT_MAX_WAIT_S if model is None else model.queueing.max_wait_s
        context.max_wait_s = now - context.received_at + max_wait_s
        body = stream.next_body(self._body)
        stream.next_stream()
        if body is None:
            self._count(ContinuationOutcome.RESUMED)
            self.end = stream.finish_at_limit()
        else:
            self._request.body, self._request.length = body, len(body)
        return True

    def resume(self, head: ResponseHead) -> Refusal | None:
        """Check the head of a target's response; returns the refusal if the target does not continue the answer."""
        if head.status == 200 and head.is_event_stream:
            self._count(ContinuationOutcome.RESUMED)
            return None
        return Refusal(_ENGINE_FAILED, f"the engine responded with status {head.status}")

    def failed(self, refusal: Refusal) -> tuple[Reason, str]:
        """The reason and the detail for the client if no target continues the answer."""
        self._refuse(refusal.detail, ContinuationOutcome.NO_TARGET)
        return self._failure.reason if refusal.reason in _OF_CAPACITY else refusal.reason, self.detail

    def _refuse(self, problem: str, outcome: ContinuationOutcome) -> bool:
        self._count(outcome)
        self.detail = f"{self._failure.detail}; not continued: {problem}"
        return False

    def _exclude(self, attempt: Attempt, *, reported: bool) -> None:
        """Exclude the failed targets, except a region that reported the failure: its agent evaluates the endpoint."""
        context, attempts = self._context, self._context.attempts
        if not attempt.from_peer:
            self._failed_endpoints |= {attempt.endpoint_name}
        elif not reported:
            self._failed_regions.append(attempt.region)
        if self._failure.reason is _ENGINE_FAILED and (reported or not attempt.from_peer):
            context.broken += 1
        context.forget_tries()
        context.attempts = attempts
        context.tried_endpoints = self._failed_endpoints
        for region in self._failed_regions:
            context.tried(region, Reason.UNREACHABLE)

    def _count(self, outcome: ContinuationOutcome) -> None:
        self._services.recorder.metrics.stream_failed(outcome)


def _opted_in(policy: Policy | None, model: str) -> bool:
    known = policy.models.get(model) if policy is not None else None
    return known is not None and known.continue_streams
