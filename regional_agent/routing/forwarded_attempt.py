"""One try of a request at an agent of another region. Has the methods of `LocalAttempt`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.accounts.outcome_rules import Outcome
from penstock.admission.retry_after import stated_retry_after_s
from penstock.answers.answer_errors import AnswerError
from penstock.answers.token_counts import Usage
from penstock.health.progress import Stall
from penstock.http.header_rules import BROKE, ENGINE_FAILED_HEADER, REFUSAL_HEADER, Header
from penstock.retries.retry_rules import MAX_FAILED, RetryReason
from penstock.routing.reasons import Reason
from regional_agent.requests.request_context import RequestContext
from regional_agent.upstream.address import Address

if TYPE_CHECKING:
    from regional_agent.peers.peer_prober import PeerProber

REASONS: Final = {reason.value.encode(): reason for reason in Reason}

_STALLED: Final = Outcome.STALLED
"""Alias: in Python 3.11 reading an enum member from its class is a function call."""


def engines_failed_line(count: int, *, broke: bool) -> bytes:
    """Return the header line that states the failed engines to the agent of the origin; `broke` as in BROKE."""
    return b"%b: %d%b\r\n" % (ENGINE_FAILED_HEADER, min(count, MAX_FAILED), BROKE if broke else b"")


class ForwardedAttempt:
    """An attempt in another region, whose agent chooses the endpoint."""

    retry_reason: ClassVar[RetryReason] = RetryReason.PEER_REFUSED

    def __init__(self, region: str, address: Address, kind: str, route_header: bytes, peers: PeerProber) -> None:
        """Create an attempt.

        Args:
            region: the serving region.
            address: the address of an agent of that region.
            kind: why that region serves the request.
            route_header: the signed route context.
        """
        self.from_peer = True
        self.region = region
        self.address = address
        self.kind = kind
        self.endpoint_name = ""
        self.base_path = b""
        self.route_header = route_header
        self.target_lines = b"x-penstock-route: %b\r\n" % route_header
        self.is_charged = False
        """Whether an engine of the region responded with an error that counts against it, and none else there can
        serve the request."""
        self._states_failed = False
        """Whether the region states how many of its engines failed the request."""
        self.failed_engines = 1
        """Number of engines of the region that failed the request, as its agent reports it with a failure."""
        self._ended_one = True
        """Whether one of them broke the connection or stopped responding; True until the agent reports it."""
        self.accepts_in_s = 0.0
        """Retry-After (s) of a region that refused the request as full; 0 otherwise."""
        self._peers = peers
        self.owes_credit = False
        """Whether the attempt uses a spill credit of the region that has not been spent."""

    def begin(self, context: RequestContext) -> None:
        """Spend the credit of an attempt that was prepared before another region failed."""
        if self.owes_credit:
            self.owes_credit = False
            self._peers.spend(self.region, context.model)

    def peer_failed(self) -> bool:
        """Whether the prober has lost the agents of the region, even if its connections are open."""
        return self._peers.is_lost(self.region)

    def on_head(self, status: int, by_name: dict[bytes, bytes], headers: Sequence[Header]) -> Reason | None:
        """Process a response head; returns why the peer refused the request, or None."""
        failed = by_name.get(ENGINE_FAILED_HEADER)
        self._states_failed = failed is not None
        if failed is not None:
            count, broke, _ = failed.partition(BROKE)
            self.failed_engines = min(int(count), MAX_FAILED) if count.isdigit() and len(count) < 3 else 1
            self._ended_one = broke != b""
        if REFUSAL_HEADER not in by_name:
            self.is_charged = self._states_failed
            return None
        reason = REASONS.get(by_name[REFUSAL_HEADER], Reason.UNREACHABLE)
        if reason is Reason.SATURATED:
            self.accepts_in_s = stated_retry_after_s(by_name.get(b"retry-after", b""))
        return reason

    def on_first_byte(self, now: float) -> None:
        """Do nothing: this agent holds no reservation."""

    def progressed(self, now: float) -> None:
        """Do nothing: the serving region evaluates the health of its endpoint."""

    def waits(self, now: float) -> float:
        """Return 0: this agent does not know the speed of the endpoint."""
        return 0.0

    def waits_for_chunk(self, since: float, now: float) -> None:
        """Do nothing: this agent holds no reservation."""

    def stall(self) -> Stall | None:
        """Return None: the serving region itself sends the request to another of its endpoints."""
        return None

    def moved_away(self, context: RequestContext) -> None:
        """Not called, since `stall` returns None."""

    def settle(self, now: float, service_s: float | None = None, usage: Usage | None = None) -> None:
        """Do nothing: this agent holds no reservation."""

    def failed(self, outcome: Outcome) -> None:
        """Report the expiry of a timeout of this agent to the prober, as a failed request."""
        if outcome is _STALLED:
            self._peers.request_failed(self.region, self.address)

    def erred(self, error: AnswerError) -> None:
        """Do nothing: the serving region evaluates the health of its endpoint."""

    def is_at_fault(self) -> bool:
        """Whether the serving region reports that its engine failed the request, and that none else there can serve
        it."""
        return self.is_charged

    def failed_first(self, context: RequestContext) -> None:
        """Exclude the region, whose response was an error of its only engine."""
        context.failed_because = Reason.ENGINE_FAILED
        self._count_failed(context)
        context.tried(self.region, Reason.ENGINE_FAILED)

    def _count_failed(self, context: RequestContext) -> None:
        context.failed_elsewhere += self.failed_engines
        context.may_end_engines = context.may_end_engines or (self._ended_one and self.failed_engines > 0)

    def unreachable(self, context: RequestContext, *, broke: bool) -> None:
        """Exclude the region after a failure before a response, and report the failed request to the prober."""
        context.failed_because = Reason.ENGINE_FAILED
        context.tried(self.region, Reason.UNREACHABLE)
        self._peers.request_failed(self.region, self.address)

    def rejected(self, context: RequestContext, reason: Reason, now: float) -> None:
        """Exclude the region after its agent refused the request without starting it."""
        context.failed_because = Reason.SATURATED
        if self._states_failed or reason is Reason.ENGINE_FAILED:
            self._count_failed(context)
            broke = self._states_failed and self._ended_one
            context.failed_as = Outcome.ENGINE_CUT if broke else Outcome.ENGINE_ERROR
            context.reported_error = context.reported_error or f"one in {self.region} failed"
        if reason is Reason.NO_IDLE_SLOTS:
            context.preempted()
            reason = Reason.SATURATED
        context.tried(self.region, reason)
