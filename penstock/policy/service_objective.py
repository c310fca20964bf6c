"""Service objectives for the time to first byte, and the reports of their attainment."""

from __future__ import annotations

from math import inf

import msgspec


class ServiceObjective(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The objective of a model's responses, as measured by clients."""

    first_byte_s: float
    """Time (s) from a client's request to the first byte of the response body."""
    share: float
    """Target share (0-1) of requests whose response begins within that time."""


class ObjectiveReport(msgspec.Struct, frozen=True, gc=False):
    """Recent responses of one agent for one model, counted against the objective of the agent's policy."""

    model: str
    first_byte_s: float
    share: float
    answers: int
    """Finished requests of the last minutes, including failed ones."""
    within: int
    """Finished requests of the last minutes that succeeded and whose response began in time."""
    answers_ever: int = 0
    """As `answers`, since the start of the agent or the last change of the objective; 0 if not reported."""
    within_ever: int = 0
    """As `within`, for the same period as `answers_ever`."""

    @property
    def wanted(self) -> tuple[str, float, float]:
        """The identity of an objective."""
        return self.model, self.first_byte_s, self.share

    @property
    def is_possible(self) -> bool:
        """Whether counts and objective are consistent and in range."""
        are_counts = 0 <= self.within <= self.answers and 0 <= self.within_ever <= self.answers_ever
        return are_counts and 0.0 < self.first_byte_s < inf and 0.0 < self.share < 1.0
