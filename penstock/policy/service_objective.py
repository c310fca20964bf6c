"""How soon most answers of a model should begin, and how an agent says whether they did."""

from __future__ import annotations

from math import inf

import msgspec


class ServiceObjective(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What policy wants of a model's answers, as their clients see them."""

    first_byte_s: float
    """Time (s) from a client's request to the first byte of the answer's body."""
    share: float
    """The part (0-1) of the requests whose answers should begin within that."""


class ObjectiveReport(msgspec.Struct, frozen=True, gc=False):
    """Recent responses of one agent for one model, counted against the objective that the agent has."""

    model: str
    first_byte_s: float
    share: float
    answers: int
    """Requests of the last minutes that were answered, or failed."""
    within: int
    """Those of them that were answered well, beginning in time."""
    answers_ever: int = 0
    """As `answers`, since the agent began or the objective became what it is; 0 from an agent that does not say so."""
    within_ever: int = 0
    """As `within`, likewise."""

    @property
    def wanted(self) -> tuple[str, float, float]:
        """What tells objectives apart."""
        return self.model, self.first_byte_s, self.share

    @property
    def is_possible(self) -> bool:
        """Whether counts and objectives can ever look like this."""
        are_counts = 0 <= self.within <= self.answers and 0 <= self.within_ever <= self.answers_ever
        return are_counts and 0.0 < self.first_byte_s < inf and 0.0 < self.share < 1.0
