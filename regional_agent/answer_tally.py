"""Counts how requests of this agent's clients ended, for the control plane to judge changes of policy by."""

from __future__ import annotations

from penstock.answers import Answers
from penstock.reasons import Reason
from regional_agent.metrics import RequestOutcome

_NOT_OURS = frozenset({RequestOutcome.CANCELLED, RequestOutcome.CLIENT_ERROR})
"""Ends that say nothing of the fleet."""

_BY_POLICY = frozenset(
    {
        Reason.UNKNOWN_KEY,
        Reason.UNKNOWN_MODEL,
        Reason.RESIDENCY_NOT_ALLOWED,
        Reason.RESIDENCY_DENIED,
        Reason.LOCATION_UNKNOWN,
        Reason.NO_PERMITTED_REGION,
        Reason.MISDIRECTED,
        Reason.QUOTA_EXCEEDED,
    }
)
"""Refusals before a request is carried that a mistake in policy can bring about."""


class AnswerTally:
    """Four numbers."""

    __slots__ = ("_begun", "_ended", "_failed", "_first_byte_s")

    def __init__(self) -> None:
        self._ended = self._failed = self._begun = 0
        self._first_byte_s = 0.0

    def ended(self, outcome: RequestOutcome, first_byte_s: float | None) -> None:
        """A request of a client ended; `first_byte_s` is the time (s) to its answer's first byte, if it had any."""
        if outcome in _NOT_OURS:
            return
        self._ended += 1
        if outcome is not RequestOutcome.OK:
            self._failed += 1
        if first_byte_s is not None:
            self._begun += 1
            self._first_byte_s += first_byte_s

    def turned_away(self, reason: Reason) -> None:
        """A request was refused before anybody carried it."""
        if reason in _BY_POLICY:
            self._ended += 1
            self._failed += 1

    def report(self) -> Answers:
        """The numbers now."""
        return Answers(self._ended, self._failed, self._begun, self._first_byte_s)
