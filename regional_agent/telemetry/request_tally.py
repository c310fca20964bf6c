"""Counts how requests of this agent's clients ended, for the control plane to judge policy and service by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.fleet.request_counts import RequestCounts
from penstock.policy.policy import Model
from penstock.policy.service_objective import ObjectiveReport
from penstock.routing.reasons import Reason
from regional_agent.telemetry.agent_metrics import RequestOutcome
from regional_agent.telemetry.objective_tally import ObjectiveTally

_OK: Final = RequestOutcome.OK
"""In Python 3.11, to read a member off its class is a function call."""

_NOT_OURS: Final = frozenset({RequestOutcome.CANCELLED, RequestOutcome.CLIENT_ERROR})
"""Ends that say nothing of the fleet."""

_BY_POLICY: Final = frozenset(
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
"""Refusals before a request is carried that a mistake in policy can bring about."""


class RequestTally:
    """Four numbers, and two for each model that has a service objective."""

    __slots__ = ("_begun", "_ended", "_failed", "_first_byte_s", "objectives")

    def __init__(self) -> None:
        self._ended = self._failed = self._begun = 0
        self._first_byte_s = 0.0
        self.objectives: dict[str, ObjectiveTally] = {}
        """By model."""

    def use(self, models: Mapping[str, Model]) -> None:
        """Take the objectives of a newly accepted policy; counts go on where the objective is what it was."""
        before, self.objectives = self.objectives, {}
        for name, model in models.items():
            if model.service_objective is not None:
                tally = before.get(name)
                if tally is None or tally.objective != model.service_objective:
                    tally = ObjectiveTally(model.service_objective)
                self.objectives[name] = tally

    def ended(self, model: str, outcome: RequestOutcome, first_byte_s: float | None) -> None:
        """A request of a client for a model ended; `first_byte_s`: the time (s) to its answer's first byte, if any."""
        is_ok = outcome is _OK
        if not is_ok:
            if outcome in _NOT_OURS:
                return
            self._failed += 1
        self._ended += 1
        if first_byte_s is not None:
            self._begun += 1
            self._first_byte_s += first_byte_s
        objective = self.objectives.get(model)
        if objective is not None:
            objective.ended(is_ok, first_byte_s)

    def turned_away(self, reason: Reason) -> None:
        """A request was refused before anybody carried it."""
        if reason in _BY_POLICY:
            self._ended += 1
            self._failed += 1

    def report(self) -> RequestCounts:
        """The numbers now."""
        return RequestCounts(self._ended, self._failed, self._begun, self._first_byte_s)

    def report_objectives(self, now: float) -> tuple[ObjectiveReport, ...]:
        """How every objective was kept lately; `now` is of a clock (s) that never goes back."""
        return tuple(tally.report(model, now) for model, tally in self.objectives.items())
