"""Counts outcomes of client requests, from which the control plane evaluates rollouts and service objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.fleet.request_counts import RequestCounts
from penstock.policy.policy import Model
from penstock.policy.service_objective import ObjectiveReport
from penstock.routing.reasons import Reason
from regional_agent.telemetry.objective_tally import ObjectiveTally
from regional_agent.telemetry.outcomes import RequestOutcome

_OK: Final = RequestOutcome.OK
"""A module constant, since in Python 3.11 access to an enum member through its class is a function call."""

_UNCOUNTED: Final = frozenset({RequestOutcome.CANCELLED, RequestOutcome.CLIENT_ERROR})
"""Outcomes that the fleet does not cause; they are not counted."""

_POLICY_REASONS: Final = frozenset(
    {
        Reason.INVALID_API_KEY,
        Reason.MODEL_NOT_FOUND,
        Reason.RESIDENCY_NOT_ALLOWED,
        Reason.RESIDENCY_DENIED,
        Reason.LOCATION_UNKNOWN,
        Reason.NO_PERMITTED_REGION,
        Reason.MISDIRECTED,
        Reason.QUOTA_EXCEEDED,
    }
)
"""Rejections before routing that a policy error can cause; they count as failures."""


class RequestTally:
    """Counters of ended and failed requests and first-byte times, and a tally for each service objective."""

    __slots__ = ("_begun", "_ended", "_failed", "_first_byte_s", "objectives")

    def __init__(self) -> None:
        self._ended = self._failed = self._begun = 0
        self._first_byte_s = 0.0
        self.objectives: dict[str, ObjectiveTally] = {}
        """Tallies of service objectives, by model."""

    def use_objectives(self, models: Mapping[str, Model]) -> None:
        """Use the objectives of a newly accepted policy; counts of unchanged objectives are kept."""
        before, self.objectives = self.objectives, {}
        for name, model in models.items():
            if model.service_objective is not None:
                tally = before.get(name)
                if tally is None or tally.objective != model.service_objective:
                    tally = ObjectiveTally(model.service_objective)
                self.objectives[name] = tally

    def ended(self, model: str, outcome: RequestOutcome, first_byte_s: float | None) -> None:
        """Count a client request that ended; `first_byte_s` is the time to the first byte in seconds, or None."""
        is_ok = outcome is _OK
        if not is_ok:
            if outcome in _UNCOUNTED:
                return
            self._failed += 1
        self._ended += 1
        if first_byte_s is not None:
            self._begun += 1
            self._first_byte_s += first_byte_s
        objective = self.objectives.get(model)
        if objective is not None:
            objective.ended(is_ok, first_byte_s)

    def rejected(self, reason: Reason) -> None:
        """Count a request that was rejected before routing."""
        if reason in _POLICY_REASONS:
            self._ended += 1
            self._failed += 1

    def report(self) -> RequestCounts:
        """Return the current counts."""
        return RequestCounts(self._ended, self._failed, self._begun, self._first_byte_s)

    def report_objectives(self, now: float) -> tuple[ObjectiveReport, ...]:
        """Return the report of every service objective; `now` is monotonic time, in seconds."""
        return tuple(tally.report(model, now) for model, tally in self.objectives.items())
