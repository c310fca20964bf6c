"""Counts outcomes of client requests, from which the control plane evaluates rollouts and service objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.accounts.outcome_rules import FAULTS_OF_POLICY, RULES, Counts, Outcome
from penstock.fleet.counts.message_bytes import BytesTally
from penstock.fleet.counts.request_counts import RequestCounts
from penstock.meters.objective_tally import Judgement, ObjectiveTally
from penstock.policy.kinds.models import Model
from penstock.policy.service_objective import Measure, ObjectiveReport
from penstock.routing.reasons import Refusal
from penstock.tenancy.refusals import OtherRefusalLog

_OK: Final = Outcome.OK
_NOT: Final = Counts.NOT
_SUCCESS: Final = Counts.SUCCESS
_FAILURE: Final = Counts.FAILURE
_FIRST_BYTE: Final = Measure.FIRST_BYTE
_TOTAL: Final = Measure.TOTAL
"""Module constants, since in Python 3.11 access to an enum member through its class is a function call."""


class RequestTally:
    """Counters of ended and failed requests and first-byte times, and a tally for each service objective."""

    def __init__(self) -> None:
        self._ended = self._failed = self._begun = 0
        self._first_byte_s = self._first_byte_s2 = 0.0
        self.message_bytes = BytesTally()
        """Sizes of the requests and responses of clients, by model."""
        self.refusals = OtherRefusalLog()
        """Why requests of tenants were refused or ended, but for budgets."""
        self.objectives: dict[str, dict[Measure, ObjectiveTally]] = {}
        """Tallies of service objectives, by model and measure."""

    def use_objectives(self, models: Mapping[str, Model]) -> None:
        """Use the objectives of a newly accepted policy; counts of unchanged objectives are kept."""
        before, self.objectives = self.objectives, {}
        for name, model in models.items():
            objective = model.service_objective
            if objective is None:
                continue
            tallies = self.objectives[name] = {}
            for measure, limit_s in objective.limits_s.items():
                tally = before.get(name, {}).get(measure)
                if tally is None or (tally.limit_s, tally.share) != (limit_s, objective.share):
                    tally = ObjectiveTally(measure, limit_s, objective.share)
                tallies[measure] = tally

    def ended(
        self, model: str, outcome: Outcome, first_byte_s: float | None, total_s: float, *, streaming: bool
    ) -> Judgement | None:
        """Count a client request that ended, as RULES says for its outcome. Returns how its objective counts it.

        Args:
            first_byte_s: time (s) to the first byte of the response; None if no response began.
            total_s: time (s) to the end of the request.
            streaming: whether the response is streamed. The first byte of any other response arrives at its end, so
                that its time depends on the length of the answer.
        """
        in_objectives = _SUCCESS if outcome is _OK else RULES[outcome].objectives
        if self._count_evidence(outcome) and streaming and first_byte_s is not None:
            self._begun += 1
            self._first_byte_s += first_byte_s
            self._first_byte_s2 += first_byte_s * first_byte_s
        tallies = self.objectives.get(model)
        if tallies is not None:
            tally = tallies.get(_FIRST_BYTE if streaming else _TOTAL)
            if tally is not None:
                measured_s = first_byte_s if streaming or first_byte_s is None else total_s
                return tally.ended(in_objectives, measured_s, total_s)
        return None

    def batch_ended(self, outcome: Outcome) -> None:
        """Count batch work that ended: as evidence, without times and objectives, since no client waits for it."""
        self._count_evidence(outcome)

    def _count_evidence(self, outcome: Outcome) -> bool:
        """Count a request in the evidence of rollouts; returns whether its outcome counts there."""
        counts = _SUCCESS if outcome is _OK else RULES[outcome].evidence
        if counts is _NOT:
            return False
        self._failed += counts is _FAILURE
        self._ended += 1
        return True

    def rejected(self, refusal: Refusal) -> None:
        """Count a request that was refused before routing, if an error in the policy may have refused it."""
        if refusal.may_be_by_change and refusal.reason in FAULTS_OF_POLICY:
            self._ended += 1
            self._failed += 1

    def report(self) -> RequestCounts:
        """Return the current counts."""
        return RequestCounts(self._ended, self._failed, self._begun, self._first_byte_s, self._first_byte_s2)

    def report_objectives(self, now: float) -> tuple[ObjectiveReport, ...]:
        """Return the report of every service objective; `now` is monotonic time, in seconds."""
        return tuple(
            tally.report(model, now) for model, tallies in self.objectives.items() for tally in tallies.values()
        )
