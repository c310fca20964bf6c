"""One try of a request at one target: at an endpoint of this region, or forwarded to an agent of another region.

`LocalAttempt` and `ForwardedAttempt` have the same methods. `Attempt` is their union, so that mypyc compiles direct
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import structlog

from penstock.accounts.outcome_rules import RULES, Outcome, outcome_of_error
from penstock.admission.region_queues import RegionQueues
from penstock.admission.retry_after import stated_retry_after_s
from penstock.answers.answer_errors import AnswerError, ErrorCause
from penstock.answers.token_counts import Usage
from penstock.health import preemption_notice
from penstock.health.engines import orca
from penstock.health.outlier_ejection import ENGINE_ERRORS, AttemptOutcome, EjectionState
from penstock.health.progress import Stall
from penstock.http.header_rules import Header
from penstock.pools.burst import BurstUse
from penstock.pools.placement import Placement, WorkEstimate
from penstock.retries.busy_rest import busy_rest_s
from penstock.retries.retry_rules import BUSY_STATUSES, RetryReason
from penstock.routing.endpoint_chooser import EndpointChooser
from penstock.routing.endpoint_selection import LONG_PREFILL_US
from penstock.routing.reasons import Reason
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.forwarded_attempt import ForwardedAttempt

if TYPE_CHECKING:
    from regional_agent.endpoints.endpoint_set import EndpointSet
    from regional_agent.http.messages import Request
    from regional_agent.shared_load.shared_load import SharedLoad

_SERVED: Final = AttemptOutcome.SERVED
_INCONCLUSIVE: Final = AttemptOutcome.INCONCLUSIVE
_CREDENTIAL_REJECTED: Final = AttemptOutcome.CREDENTIAL_REJECTED
_UNREACHABLE: Final = AttemptOutcome.UNREACHABLE
_SERVER_ERROR: Final = AttemptOutcome.SERVER_ERROR
_NONE: Final = EjectionState.NONE
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""

_ENGINE_ERROR: Final = Outcome.ENGINE_ERROR

_EVIDENCE: Final[dict[Outcome, AttemptOutcome]] = {
    Outcome.ENGINE_CUT: AttemptOutcome.BROKEN_OFF,
    Outcome.STALLED: AttemptOutcome.STALLED,
}
"""What a failed response is as evidence about its endpoint. Errors are evidence as the policy counts status 500."""

_GIVEN_UP: Final = (None, AttemptOutcome.STALLED)
"""Outcomes of incomplete responses that the agent, and not the endpoint, ended."""

log = structlog.get_logger()


class LocalServices:
    """The services to which the attempts at endpoints of this region report."""

    def __init__(
        self,
        region: str,
        endpoints: EndpointSet,
        shared_load: SharedLoad,
        chooser: EndpointChooser,
        queues: RegionQueues[Any],
    ) -> None:
        """`queues` are what waits in the region for slots that attempts release."""
        self.region = region
        self.endpoints = endpoints
        self.shared_load = shared_load
        self.chooser = chooser
        self.queues = queues

    def reserve(
        self, context: RequestContext, endpoint: Endpoint, kind: str, now: float, spared_s: float = 0.0
    ) -> LocalAttempt:
        """Return an attempt at an endpoint, however full it is, counted there and for its tenant if it occupies a slot.

        Args:
            kind: why this region serves the request.
            now: by the agent's clock, in seconds.
            spared_s: prefill (s, reference) that the endpoint's cache spares.
        """
        estimate = context.estimate
        attempt = LocalAttempt(endpoint, estimate, spared_s, now, kind, self)
        if context.broken:
            attempt.broken_before = context
        if not context.occupies_slot:
            attempt.released = True
            return attempt
        attempt.charged_s = charged_s = estimate.work.prefill_s + estimate.work.decode_s - spared_s
        counters = self.shared_load.work.of(context.model)
        attempt.counter = counters.start(context.priority, estimate.tenant, context.weight, charged_s, attempt.since)
        self.publish_load()
        attempt.take()
        if endpoint.ejection.state is not _NONE:
            endpoint.sent_while_ejected()
        return attempt

    def publish_load(self) -> None:
        """Publish the load of this agent, which changes now, after this turn of the event loop."""
        if not self.shared_load.has_changed:
            self.shared_load.publish()


class LocalAttempt(Placement[Endpoint]):
    """An attempt at an endpoint of this region, with a reservation on it."""

    failed_engines: ClassVar[int] = 1

    def __init__(
        self,
        endpoint: Endpoint,
        estimate: WorkEstimate,
        spared_s: float,
        now: float,
        kind: str,
        services: LocalServices,
    ) -> None:
        """Create an attempt whose reservation is not counted yet.

        Args:
            spared_s: prefill (s, reference) that the endpoint's cache spares.
            now: by the agent's clock, in seconds.
            kind: why this region serves the request.
        """
        super().__init__(endpoint, estimate, spared_s, now)
        self._services = services
        self.from_peer = False
        """Whether the target is a peer region."""
        self.address = endpoint.address
        self.region = services.region
        self.kind = kind
        self.rewrite = endpoint.rewrite
        """The changes to the client's request for this endpoint; None for no changes."""
        self.endpoint_name = endpoint.name
        self.base_path = b"" if endpoint.rewrite is None else endpoint.rewrite.base_path
        """Prefix of all paths of the endpoint; empty for none."""
        self.target_lines = b"" if endpoint.rewrite is None else endpoint.rewrite.header_lines
        """Header lines for this target only, such as its credential."""
        self.outcome: AttemptOutcome | None = None
        """The outcome for the health of the endpoint; None while it is undecided."""
        self.on_settle: Callable[[LocalAttempt], None] | None = None
        """Called when the reservation is released."""
        self.broken_before: RequestContext | None = None
        """The request, if an earlier attempt failed after the endpoint had received it."""
        self.accepts_in_s = 0.0
        """Retry-After (s) of an engine that responded with 429; 0 without one."""
        self.burst: BurstUse | None = None
        """The use of a burst endpoint; None for other endpoints."""
        self.lacks_route = ""
        """The route of the request, if the engine responded with 404 as if it lacked its path; empty otherwise."""
        self._silent_since = 0.0
        """Since when a stream has been silent (s); 0 if it is not."""
        self._judged_later = False
        """Whether `EndpointFailures.check` decides about the outcome."""

    @property
    def retry_reason(self) -> RetryReason:
        """Why the request is retried after a rejection."""
        return RetryReason.CREDENTIAL_REJECTED if self.outcome is _CREDENTIAL_REJECTED else RetryReason.ENGINE_BUSY

    def rewritten(self, request: Request) -> Request:
        """The request as the endpoint receives it, apart from `target_lines`."""
        if self.rewrite is None:
            return request
        return self.rewrite.apply(request, self.estimate.adapter or self.estimate.model)

    def peer_failed(self) -> bool:
        """Return False: the target is not a peer region."""
        return False

    def on_head(self, status: int, by_name: Mapping[bytes, bytes], headers: Sequence[Header]) -> Reason | None:
        """Process a response head; returns why the target rejected the request without starting it, or None."""
        if status < 400 and orca.HEADER not in by_name and preemption_notice.HEADER not in by_name:
            return None
        self.outcome = self._services.endpoints.answered(self.endpoint, status, headers)
        if self.outcome is _CREDENTIAL_REJECTED:
            return Reason.ENGINE_FAILED
        self._judge_again()
        if status == 429:
            self.accepts_in_s = stated_retry_after_s(by_name.get(b"retry-after", b""))
        return Reason.SATURATED if status in BUSY_STATUSES else None

    def on_first_byte(self, now: float) -> None:
        """Release the prefill of a response that has begun, and update the learned speed. `now` in s."""
        if self.burst is not None:
            self.burst.began(now)
        if self.first_byte(now):
            self._prefilled()
            self.endpoint.traffic.first_bytes.observe(now - self.since)
            if self.outcome is None:
                self.endpoint.progress.began(now - self.since, self.uncached_s, self.streams)
            try:
                self._services.chooser.learn_first_byte(self, now)
            except Exception:
                log.exception("learning from a first byte failed", endpoint=self.endpoint.name)

    def progressed(self, now: float) -> None:
        """Record that output has arrived recently. `now` in s."""
        self.endpoint.progress.progressed_at = now
        if self._silent_since:
            # A tool call that was held back does not explain the silence of other streams.
            if not self.estimate.ask.offers_tools:
                self.endpoint.progress.resumed(now - self._silent_since)
            self._silent_since = 0.0
        if self.broken_before is not None:
            self._services.endpoints.failures.began(self.broken_before)
            self.broken_before = None

    def waits(self, now: float) -> float:
        """Record that no byte of the response has arrived by `now` (s). Called a few times a second.

        Releases the prefill of a response that is not streamed once the prefill should have ended.

        Returns:
            The tokens that the answer should have by now, if it is not streamed.
        """
        if self.prefill_is_due(now):
            self._prefilled()
        if self._is_evidence():
            self.endpoint.progress.waits(self.awaited(), now)
        return self.output_by(now)

    def _prefilled(self) -> None:
        """Release the prefill. After that of a long prompt, the endpoint may take another one."""
        services, is_long = self._services, self.prefill_us >= LONG_PREFILL_US
        if self.end_prefill():
            services.publish_load()
        if is_long:
            services.queues.room_appeared()

    def waits_for_chunk(self, since: float, now: float) -> None:
        """Record that no further output has arrived since `since` (s). Called a few times a second."""
        self._silent_since = since
        if self._is_evidence():
            may_pause = self.estimate.ask.offers_tools
            self.endpoint.progress.waits_for_chunk(since, self.expected_first_byte_s(), now, may_pause=may_pause)

    def _is_evidence(self) -> bool:
        """Whether the request was sent after the endpoint became suspect, if it is suspect."""
        ejection = self.endpoint.ejection
        return not ejection.is_ejected or self.since >= ejection.since

    def stall(self) -> Stall | None:
        """Why the endpoint has become suspect; None if it has not."""
        return self.endpoint.stall_at(self.since)

    def moved_away(self, context: RequestContext) -> None:
        """Record that the request leaves a suspect endpoint. The request itself may be the cause."""
        context.failed_because = Reason.ENGINE_TIMEOUT
        context.broken += 1
        context.may_end_engines = True
        context.tried_endpoints |= {self.endpoint.name}

    def settle(self, now: float, service_s: float | None = None, usage: Usage | None = None) -> None:
        """Release the reservation, and learn from the outcome. Called exactly once.

        Args:
            now: by the agent's clock (s).
            service_s: service time (s) of a complete response of this attempt; None for any other outcome.
            usage: the usage that the engine reported for a complete response; this attempt may only have continued it.
        """
        services, endpoint = self._services, self.endpoint
        if self.on_settle is not None:
            self.on_settle(self)
        if self.burst is not None:
            self.burst.ended(now)
        if self.release():
            services.publish_load()
        services.queues.room_appeared()
        outcome = self.outcome or (_INCONCLUSIVE if service_s is None else _SERVED)
        try:
            endpoint.traffic.ended(outcome, service_s)
            self.end_charge(now, service_s, usage)
            if service_s is not None:
                endpoint.completed(service_s)
                if self.outcome is None:
                    took_s, streaming = now - self.since, self.estimate.streaming
                    endpoint.progress.completed(
                        took_s,
                        streaming=streaming,
                        is_text=self.is_text,
                        prefill_s=self.uncached_s,
                        streams=self.streams,
                    )
                    services.chooser.learn_response(self, now, usage)
            elif self.outcome in _GIVEN_UP and not self._judged_later:
                endpoint.occupation.abandoned(now)
            if service_s is None and usage is not None:
                services.chooser.learn_length(self.estimate, now, usage)
            if not self._judged_later:
                estimate = self.estimate
                services.endpoints.failures.ended(endpoint, estimate.tenant, outcome, self.since, estimate.adapter)
        except Exception:
            # The reservation is released, so a failure to learn must not fail the request.
            log.exception("learning from a finished request failed", endpoint=endpoint.name, model=self.estimate.model)

    def failed(self, outcome: Outcome) -> None:
        """Record how the response failed. The table of outcomes states whether the endpoint is charged."""
        if not RULES[outcome].charges_endpoint:
            self.outcome = _INCONCLUSIVE
        elif outcome is _ENGINE_ERROR:
            self.outcome = self._services.endpoints.engine_error()
            self._judge_again()
        else:
            self.outcome = _EVIDENCE.get(outcome, _SERVER_ERROR)

    def erred(self, error: AnswerError) -> None:
        """Record an error that the engine reported in a response with status 200."""
        if error.cause is ErrorCause.BUSY:
            self.failed(Outcome.REFUSED)
            self.endpoint.mark_full()
        else:
            self.failed(outcome_of_error(error))

    def failed_first(self, context: RequestContext) -> None:
        """Record that the request leaves the endpoint, whose response was an error from its first byte on."""
        context.failed_because = Reason.ENGINE_FAILED
        context.broken += 1
        context.tried_endpoints |= {self.endpoint.name}
        self._judge_later(context, self.outcome or _SERVER_ERROR)

    def _judge_later(self, context: RequestContext, outcome: AttemptOutcome) -> bool:
        """Leave it to `EndpointFailures` whether the endpoint or the request is the cause; returns its result."""
        self._judged_later = True
        failures, estimate = self._services.endpoints.failures, self.estimate
        return failures.failed_before_response(
            self.endpoint, estimate.tenant, context, outcome, self.since, estimate.adapter
        )

    def _judge_again(self) -> None:
        """Let an error of the engine count against no endpoint if an earlier attempt of the request failed too."""
        if self.broken_before is not None and self.outcome in ENGINE_ERRORS:
            self._judge_later(self.broken_before, self.outcome)
            self.broken_before = None

    @property
    def is_charged(self) -> bool:
        """Whether the engine responded with an error that counts against the endpoint."""
        return self.outcome in ENGINE_ERRORS

    def is_at_fault(self) -> bool:
        """Whether the engine responded with an error, and the recent errors of the tenant's requests have another cause
        than the requests themselves."""
        return self.is_charged and not self._services.endpoints.failures.are_caused_by(self.estimate.tenant)

    def note_route(self) -> None:
        """Record, once another endpoint serves the request, that this one lacks its route, if it does."""
        if self.lacks_route:
            pool = self._services.endpoints.pools[self.estimate.model]
            pool.note_lacking(self.lacks_route, self.endpoint.name, self.endpoint.now())

    def charge_difference(self) -> None:
        """Record, after another endpoint served the request, that this one lacks the model or requires a credential.

        One that lacks the path of a route, which any client may call, serves other routes.
        """
        endpoints = self._services.endpoints
        if self.lacks_route:
            self.note_route()
            return
        tenant, adapter = self.estimate.tenant, self.estimate.adapter
        endpoints.failures.ended(self.endpoint, tenant, endpoints.engine_error(), self.since, adapter)

    def unreachable(self, context: RequestContext, *, broke: bool) -> None:
        """Record a failure before a response.

        Args:
            broke: the request had been sent, so the request itself may be the cause. It then counts towards ejection
                alone, which is bounded: an endpoint that clients could mark as down would be down for all of them.
        """
        context.failed_because = Reason.ENGINE_FAILED
        context.tried_endpoints |= {self.endpoint.name}
        if broke:
            if context.broken and context.request.whole:
                suspects = self._services.endpoints.failures.suspects
                suspects.add(self.estimate.tenant, context.request.body, self.endpoint.now())
            # Engines of one host may be one process that has ended, so that the request is not the cause.
            if self._judge_later(context, _UNREACHABLE):
                pool = self._services.endpoints.pools[self.estimate.model]
                context.tried_endpoints |= pool.beside(context.tried_endpoints)
                context.reported_error = "engines of one host broke the connection in turn"
            else:
                context.broken += 1
                context.may_end_engines = True
        elif self.endpoint.connection_failed():
            self.outcome = AttemptOutcome.UNREACHABLE
        else:
            self.outcome = _INCONCLUSIVE
            context.failed_because = Reason.SATURATED
            self._rest(context, self.endpoint.now())

    def rejected(self, context: RequestContext, reason: Reason, now: float) -> None:
        """Record that the target rejected the request without starting it. `now` in s."""
        self.progressed(now)
        context.failed_because = reason
        context.tried_endpoints |= {self.endpoint.name}
        if reason is not Reason.SATURATED:
            return
        self._rest(context, now)

    def _rest(self, context: RequestContext, now: float) -> None:
        """Let a request rest that the endpoint rejected as busy at `now` (s)."""
        context.busy_endpoints |= {self.endpoint.name}
        context.rests_until = now + busy_rest_s(now - context.received_at)


Attempt = LocalAttempt | ForwardedAttempt
"""One try of a request at one target."""
