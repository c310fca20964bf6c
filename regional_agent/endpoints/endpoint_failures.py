"""Applies the outcomes of requests to the endpoints, less the failures that a tenant's own requests cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import structlog

from penstock.health.failure_attribution import TenantFailures, UndecidedBreaks
from penstock.health.outlier_ejection import AttemptOutcome, EjectionState, EndedAttempt, request_ended
from penstock.health.suspect_requests import SuspectRequests
from regional_agent.endpoints.endpoint import Endpoint

_SERVED: Final = AttemptOutcome.SERVED
_INCONCLUSIVE: Final = AttemptOutcome.INCONCLUSIVE
_EJECTED: Final = EjectionState.EJECTED
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""

_NOT_BY_REQUESTS: Final = frozenset({AttemptOutcome.INCONCLUSIVE, AttemptOutcome.CREDENTIAL_REJECTED})
"""Outcomes without a failure that a request can cause: a credential is configured with its endpoint."""

log = structlog.get_logger()


class _Sent(NamedTuple):
    """A request that failed before a response, as it was sent."""

    endpoint: Endpoint
    tenant: str
    at: float
    outcome: AttemptOutcome
    adapter: str


def apply_outcome(endpoint: Endpoint, outcome: AttemptOutcome, sent_at: float) -> bool:
    """Apply the outcome of a request that was sent at `sent_at` (s); true if it ejects the endpoint."""
    before, detection = endpoint.ejection, endpoint.detection
    if outcome is _SERVED:
        if before is endpoint.clean:
            return False
        if before.is_clean:
            endpoint.clean = before
            return False
        endpoint.credential_rejected = ""
    elif outcome is _INCONCLUSIVE and not before.is_ejected:
        return False
    may_eject = all(pool.has_room_to_eject() for pool in endpoint.pools)
    ended, now = EndedAttempt(outcome, sent_at), detection.clock()
    ejection = request_ended(before, ended, now, detection.rules, detection.rng, may_eject=may_eject)
    if ejection.state is before.state:
        endpoint.ejection = ejection
        return False
    endpoint.set_ejection(ejection)
    if ejection.state is not _EJECTED:
        return False
    endpoint.ejected_by = outcome.value
    endpoint.traffic.ejections += 1
    return True


class EndpointFailures:
    """Outcomes of the requests of one agent."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_ejected: Callable[[AttemptOutcome], None],
        endpoints: Callable[[], Iterable[Endpoint]],
    ) -> None:
        """Create a record without failures.

        Args:
            clock: monotonic, in seconds.
            on_ejected: called at every ejection, with the outcome that caused it.
            endpoints: returns the endpoints of the region.
        """
        self._endpoints = endpoints
        self._clock = clock
        self._on_ejected = on_ejected
        self._by_tenant = TenantFailures()
        self._undecided: UndecidedBreaks[_Sent] = UndecidedBreaks()
        self.suspects = SuspectRequests()
        """The requests that broke several endpoints."""

    def ended(
        self, endpoint: Endpoint, tenant: str, outcome: AttemptOutcome, sent_at: float, adapter: str = ""
    ) -> None:
        """Apply the outcome of a request that a tenant's client sent.

        Args:
            sent_at: when the request was sent to the endpoint (s).
            adapter: name of the adapter that the request is for; empty for none.
        """
        by_tenant = self._by_tenant
        if outcome is _SERVED:
            if by_tenant.until >= sent_at:
                by_tenant.served(tenant, endpoint.name, self._clock())
        elif outcome not in _NOT_BY_REQUESTS and not by_tenant.failed(tenant, endpoint.name, self._clock()):
            outcome = AttemptOutcome.INCONCLUSIVE
        if adapter:
            ejects = endpoint.adapter_ended(adapter, outcome, sent_at, self._endpoints())
            if ejects:
                log.warning("adapter ejected", endpoint=endpoint.name, adapter=adapter, after=outcome.value)
            if ejects is not None:
                outcome = AttemptOutcome.INCONCLUSIVE
        if apply_outcome(endpoint, outcome, sent_at):
            until_s = endpoint.ejection.until - endpoint.ejection.since
            log.warning("endpoint ejected", endpoint=endpoint.name, after=outcome.value, for_s=round(until_s, 1))
            self._on_ejected(outcome)

    def failed_before_response(
        self,
        endpoint: Endpoint,
        tenant: str,
        request: object,
        outcome: AttemptOutcome,
        sent_at: float,
        adapter: str = "",
    ) -> bool:
        """Record that a request failed before its client received a response. The cause is decided later, by `check`.

        If a connection broke, the endpoint is probed at once, since its server may have ended. Returns whether several
        endpoints of one host broke the request's connections within JUDGED_AFTER_S.

        Args:
            request: identifies the request, which may fail at other endpoints too.
            outcome: UNREACHABLE for a connection that broke, or an error of the engine.
            sent_at: when the request was sent to the endpoint (s).
            adapter: name of the adapter that the request is for; empty for none.
        """
        now = self._clock()
        together = self._undecided.broke(request, _Sent(endpoint, tenant, sent_at, outcome, adapter), now)
        for sent in together:
            self._by_tenant.failed(sent.tenant, sent.endpoint.name, now)
            self.ended(sent.endpoint, sent.tenant, AttemptOutcome.INCONCLUSIVE, sent.at)
        if outcome is AttemptOutcome.UNREACHABLE:
            endpoint.probe_now.set()
        places = {(sent.endpoint.address.host, sent.outcome) for sent in together}
        return places == {(endpoint.address.host, AttemptOutcome.UNREACHABLE)}

    def are_caused_by(self, tenant: str) -> bool:
        """Whether the recent failures of a tenant's requests are caused by the requests."""
        now = self._clock()
        return self._by_tenant.until >= now and self._by_tenant.is_cause(tenant, now)

    def began(self, request: object) -> None:
        """Record that the response of a request began that failed before: the other endpoint was the cause."""
        for sent in self._undecided.began(request):
            self.ended(sent.endpoint, sent.tenant, sent.outcome, sent.at, sent.adapter)

    def check(self, now: float) -> None:
        """Apply the failures that count against their endpoints by `now` (s). Called a few times a second."""
        for sent in self._undecided.decided(now):
            self.ended(sent.endpoint, sent.tenant, sent.outcome, sent.at, sent.adapter)
