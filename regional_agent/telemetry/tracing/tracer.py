"""Decides which requests are exported as spans: a share of all requests when they begin, and failed and slow requests
when they end."""

from __future__ import annotations

from random import Random
from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome
from penstock.routing.reasons import Refusal
from penstock.wire.trace_context import continue_trace
from regional_agent.http.messages import Request
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.telemetry.tracing.request_trace import RequestTrace
from regional_agent.telemetry.tracing.span_builder import AttributeValue, EndedRequest, spans_of
from regional_agent.telemetry.tracing.span_exporter import SpanExporter

MAX_KEPT_PER_S: Final = 50
"""Maximum number of failed and slow requests exported per second in addition to sampled requests, because an outage
must not cost more than regular service."""

_FAILED: Final = frozenset(
    {Outcome.ENGINE_ERROR, Outcome.ENGINE_CUT, Outcome.STALLED, Outcome.TIMED_OUT, Outcome.EXPIRED, Outcome.REVOKED}
)


class Tracer:
    """Starts the traces of requests, and exports those that are kept. Used from the event loop only."""

    def __init__(self, region: str, share: float, slow_s: float, exporter: SpanExporter, rng: Random) -> None:
        """Trace the requests of an agent of `region`.

        Args:
            share: share (0-1) of the requests that are exported regardless of their outcome.
            slow_s: requests whose response begins later than this (s) are exported too.
        """
        self._region = region
        self._share = share
        self._slow_s = slow_s
        self._exporter = exporter
        self._rng = rng
        self._window_began_at = 0.0
        self._kept = 0

    def begin(self, context: RequestContext, *, trusted: bool, now: float) -> None:
        """Start the trace of an authorized request.

        The sampled flag of the caller counts only if the caller is trusted. For other callers the decision is random
        and not by trace id, because the caller chooses the trace id.

        Args:
            trusted: whether the client is a trusted proxy.
            now: by the agent's clock (s).
        """
        forwarded = context.route_context
        given: bytes | None
        if forwarded is not None:
            given, trusted = forwarded.traceparent.encode(), forwarded.traced
        else:
            given = context.request.header(b"traceparent")
        caller = None if given is None else continue_trace(given)
        if caller is None:
            trace_id, parent_id = context.traceparent[3:35], ""
            if forwarded is not None:
                trace_id = f"{self._rng.getrandbits(128) or 1:032x}"
        else:
            trace_id, parent_id = caller[3:35], caller[36:52]
        if caller is not None and trusted:
            sampled = bool(int(caller[53:55], 16) & 1)
        else:
            sampled = self._rng.random() < self._share
        context.trace = RequestTrace(trace_id, parent_id, sampled, now, self._new_span_id)
        context.traceparent = context.trace.traceparent

    def _new_span_id(self) -> str:
        return f"{self._rng.getrandbits(64) or 1:016x}"

    def ended(
        self,
        context: RequestContext,
        attempt: Attempt | None,
        account: Account,
        unix_now: float,
    ) -> None:
        """Export the spans of a request that has ended, if they are kept.

        Args:
            attempt: the last attempt; None if there was no attempt.
            unix_now: Unix time (s) of the end of the request.
        """
        trace = context.trace
        if trace is None:
            return
        outcome, status, first_byte_at, now = account.outcome, account.status, account.first_byte_at, account.ended_at
        failed = outcome in _FAILED or status >= 500
        slow = (now if first_byte_at is None else first_byte_at) - context.received_at > self._slow_s
        if not (trace.sampled or ((failed or slow) and self._may_keep(unix_now))):
            return
        request, location = context.request, context.facts.location
        own: dict[str, AttributeValue] = {
            "penstock.request_id": context.request_id,
            "penstock.outcome": outcome.value,
            "penstock.tenant": context.facts.tenant,
            "penstock.data_class": context.facts.data_class,
            "penstock.permitted_regions": tuple(sorted(context.residency.permitted.regions)),
            "penstock.rejected_regions": tuple(f"{region}={why}" for region, why in context.tried_regions.items()),
            "penstock.origin": self._region if context.route_context is None else context.route_context.origin,
            "penstock.server": "" if attempt is None else attempt.region,
            "penstock.attempts": context.attempts,
            "penstock.continuations": context.continuations,
            "geo.country.iso_code": location.country or "",
        }
        ended = EndedRequest(
            request.method.decode("latin-1"),
            request.path.decode("latin-1"),
            "" if request.route is None else request.route.path,
            status,
            failed,
            account.reason,
            context.received_at,
            now,
            first_byte_at,
            context.estimate.streaming,
            context.model,
            context.asked_for,
            account.usage,
            own,
        )
        self._exporter.add(spans_of(trace, ended, unix_now - now, self._new_span_id))

    def rejected(self, request: Request, refusal: Refusal, status: int, request_id: str, unix_now: float) -> None:
        """Export the span of a request that was refused before an exchange began, if the span is kept.

        Args:
            unix_now: Unix time (s); the span has no duration.
        """
        failed = status >= 500
        if not (self._rng.random() < self._share or (failed and self._may_keep(unix_now))):
            return
        caller = continue_trace(request.header(b"traceparent") or b"")
        trace_id, parent_id = (f"{self._rng.getrandbits(128) or 1:032x}", "")
        if caller is not None:
            trace_id, parent_id = caller[3:35], caller[36:52]
        own = {
            "penstock.request_id": request_id,
            "penstock.outcome": Outcome.REFUSED.value,
            "penstock.tenant": refusal.tenant,
        }
        route = "" if request.route is None else request.route.path
        method, path = request.method.decode("latin-1"), request.path.decode("latin-1")
        ended = EndedRequest(
            method, path, route, status, failed, refusal.reason.value, 0.0, 0.0, None, False, "", "", None, own
        )
        trace = RequestTrace(trace_id, parent_id, True, 0.0, self._new_span_id)
        self._exporter.add(spans_of(trace, ended, unix_now, self._new_span_id))

    def _may_keep(self, unix_now: float) -> bool:
        """Whether one more failed or slow request may be exported at `unix_now` (s)."""
        if abs(unix_now - self._window_began_at) >= 1.0:
            self._window_began_at, self._kept = unix_now, 0
        self._kept += 1
        return self._kept <= MAX_KEPT_PER_S
