"""Intake of agents' reports over HTTP: verifies the signature, validates the content, updates the fleet snapshot.

Every control plane accepts reports, though only the leader plans from them. A new leader, or a former leader that
leads again after a store outage, therefore has a current snapshot, and every control plane can serve the status. The
response contains the leader's URL, so that an agent without access to the store can still reach the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import structlog

from control_plane.metrics import ControlPlaneMetrics, ReportOutcome
from control_plane.planning.fleet_snapshot import FleetSnapshot
from penstock.fleet.report import AgentReport
from penstock.fleet.snapshot import ReportVerdict
from penstock.policy.policy import Policy
from penstock.wire.identity import BadIdentity, ProcessRole, SpiffeId
from penstock.wire.peer_keys import BadSignature, Keyring, Purpose
from penstock.wire.signed_report import ReportHead, authenticate_head

MAX_REPORT_BYTES = 1024 * 1024
"""Maximum size of a report, twice that of MAX_ROWS demand rows; a larger report is rejected unread."""

_log = structlog.get_logger(__name__)
_decoder = msgspec.msgpack.Decoder(AgentReport)


class ReportReceipt(msgspec.Struct, frozen=True):
    """The response to an accepted report."""

    leading: bool
    """Whether the responding control plane is the leader."""
    leader: str | None
    """Base URL of the leader, to which the agent sends further reports; None if unknown."""


class ReportRefused(Exception):
    """A report was rejected; the snapshot is unchanged."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        """HTTP status of the response."""


_REFUSALS = {
    ReportVerdict.OLD_EPOCH: (409, ReportOutcome.STALE, "a newer incarnation of this agent has reported"),
    ReportVerdict.OLD_SEQ: (409, ReportOutcome.STALE, "a newer report of this agent was accepted already"),
    ReportVerdict.UNKNOWN_REGION: (422, ReportOutcome.UNKNOWN_REGION, "policy has no such region"),
    ReportVerdict.TOO_MANY_AGENTS: (422, ReportOutcome.MALFORMED, "the region has too many agents"),
    ReportVerdict.IMPOSSIBLE: (422, ReportOutcome.MALFORMED, "the report has impossible content"),
}


class ReportIntake:
    """Verifies, validates and accepts reports.

    Args:
        keyring: verifies the signatures of reports.
        fleet: the snapshot that reports update.
        policy: returns the policy in force; None before the first policy.
        leading: returns whether this control plane leads, and the leader's base URL.
        metrics: counts reports by outcome.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        keyring: Keyring,
        fleet: FleetSnapshot,
        *,
        policy: Callable[[], Policy | None],
        leading: Callable[[], ReportReceipt],
        metrics: ControlPlaneMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._keyring = keyring
        self._fleet = fleet
        self._policy = policy
        self._leading = leading
        self._metrics = metrics
        self._clock = clock
        self.on_issuers_asked: Callable[[tuple[str, ...]], None] = lambda names: None
        """Called with the identity providers whose keys an agent asks for."""

    def authenticate(self, headers: Mapping[str, str], purpose: Purpose = Purpose.REPORT) -> ReportHead:
        """Return the head of a report whose body is not read yet.

        Args:
            headers: headers of the request, with names in lower case.
            purpose: the kind of message, if it is no report.

        Raises:
            BadIdentity, BadSignature: an agent of the fleet did not sign the report for this control plane.
        """
        return authenticate_head(self._keyring, headers, self._clock(), purpose)

    def accept_head(self, headers: Mapping[str, str]) -> ReportHead:
        """Return the head of a report, as `authenticate`, and count a report that is rejected.

        Raises:
            ReportRefused: an agent of the fleet did not sign the report for this control plane.
        """
        try:
            return self.authenticate(headers)
        except (BadIdentity, BadSignature) as error:
            raise self._not_signed(error) from None

    def receive(self, head: ReportHead, body: bytes) -> ReportReceipt:
        """Accept one report: MessagePack of `AgentReport`.

        Args:
            head: the authenticated head.

        Raises:
            ReportRefused: the content is invalid, or not what the agent signed, the report is stale, or there is no
                policy yet.
        """
        policy = self._policy()
        regions = policy.regions if policy is not None else {}
        try:
            head.verify(body)
        except BadSignature as error:
            raise self._not_signed(error) from None
        try:
            report = _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._metrics.reported("", ReportOutcome.MALFORMED, regions)
            raise ReportRefused(400, f"not a report: {error}") from None
        signer = head.sender
        if signer != SpiffeId(signer.trust_domain, ProcessRole.AGENT, report.agent, report.region):
            self._metrics.reported("", ReportOutcome.BAD_SIGNATURE, regions)
            raise ReportRefused(403, f"{signer} may not report for agent {report.agent} of region {report.region}")
        if policy is None:
            raise ReportRefused(503, "no policy is in force yet, so no region is known")
        verdict = self._fleet.add_report(report, self._clock(), policy)
        if verdict is not ReportVerdict.ACCEPTED:
            status, outcome, detail = _REFUSALS[verdict]
            self._metrics.reported(report.region, outcome, regions)
            _log.warning("report rejected", region=report.region, agent=report.agent, reason=verdict.value)
            raise ReportRefused(status, detail)
        if report.issuers_asked:
            self.on_issuers_asked(report.issuers_asked)
        receipt = self._leading()
        outcome = ReportOutcome.ACCEPTED if receipt.leading else ReportOutcome.NOT_LEADER
        self._metrics.reported(report.region, outcome, regions)
        return receipt

    def _not_signed(self, error: Exception) -> ReportRefused:
        policy = self._policy()
        self._metrics.reported("", ReportOutcome.BAD_SIGNATURE, policy.regions if policy is not None else {})
        return ReportRefused(401, str(error))
