"""Service objectives for the times of responses, and the reports of their attainment."""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import Annotated

import msgspec

from penstock.policy.fields import Conflict, PolicyStruct, bounds


class Measure(StrEnum):
    """The time that an objective limits, and the responses that it counts."""

    FIRST_BYTE = "first_byte"
    """From a client's request for a stream to the first byte of the response body."""
    TOTAL = "total"
    """From a client's request to the end of a response that is not streamed."""


class ServiceObjective(PolicyStruct, frozen=True, omit_defaults=True):
    """Targets for the times of responses as clients see them: queueing, round trips and spillover are included. At
    least one limit must be set."""

    first_byte_s: Annotated[float, bounds(gt=0, le=600)] | None
    """Time (s) from a client's request for a stream to the first byte of the response body. Counts streams only."""
    share: Annotated[float, bounds(gt=0, lt=1)]
    """Share (0-1, exclusive) of requests that must succeed within their limit; failed requests miss it."""
    total_s: Annotated[float, bounds(gt=0, le=86_400)] | None = None
    """Time (s) from a client's request to the end of a response that is not streamed. Counts such responses only."""

    def conflict(self) -> Conflict | None:
        if self.limits_s:
            return None
        return Conflict("sets no limit", "write first_byte_s for streams, or total_s for other responses")

    @property
    def limits_s(self) -> dict[Measure, float]:
        """The limits (s) by measure."""
        limits = {Measure.FIRST_BYTE: self.first_byte_s, Measure.TOTAL: self.total_s}
        return {measure: limit_s for measure, limit_s in limits.items() if limit_s is not None}


Wanted = tuple[str, float, float, Measure]
"""Identifies an objective: the model, the limit (s), the share (0-1) of responses within it, and the measure."""


class ObjectiveReport(msgspec.Struct, frozen=True, gc=False, rename={"limit_s": "first_byte_s"}):
    """Recent responses of one agent for one model, counted against an objective of the agent's policy."""

    model: str
    limit_s: float
    """Limit (s) of the measure. In reports its name is `first_byte_s`, as agents of earlier versions call it."""
    share: float
    answers: int
    """Finished requests of the last minutes, including failed ones."""
    within: int
    """Finished requests of the last minutes that succeeded within the limit."""
    answers_ever: int = 0
    """As `answers`, since the start of the agent or the last change of the objective; 0 if not reported."""
    within_ever: int = 0
    """As `within`, for the same period as `answers_ever`."""
    measure: Measure = Measure.FIRST_BYTE

    @property
    def wanted(self) -> Wanted:
        """The identity of the objective."""
        return self.model, self.limit_s, self.share, self.measure

    @property
    def is_possible(self) -> bool:
        """Whether counts and objective are consistent and in range."""
        are_counts = 0 <= self.within <= self.answers and 0 <= self.within_ever <= self.answers_ever
        return are_counts and 0.0 < self.limit_s < inf and 0.0 < self.share < 1.0


def objective_id(measure: Measure, limit_s: float, share: float) -> str:
    """Return the text that records have for an objective: `first_byte 1.5 0.99`."""
    return f"{measure.value} {limit_s:g} {share:.10g}"


def parse_objective_id(text: str) -> tuple[Measure, float, float]:
    """Return the measure, limit (s) and share (0-1) of an objective in a record.

    Raises:
        ValueError: the text is not one of `objective_id`.
    """
    measure, limit_s, share = text.split(" ")
    return Measure(measure), float(limit_s), float(share)


def within_text(limit_s: float, measure: Measure) -> str:
    """What responses within an objective do, for people: `begin within 1.5 s`."""
    return f"{'begin' if measure is Measure.FIRST_BYTE else 'are complete'} within {limit_s:g} s"
