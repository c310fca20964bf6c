"""Counts how well one model's service objective is kept, always and lately."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from penstock.policy.service_objective import ObjectiveReport, ServiceObjective

LATELY_S: Final = 300.0
"""What an agent calls lately (s): long enough for a share of few requests, short enough to see a failure."""

STEP_S: Final = 15.0
"""Time (s) between two of the moments that lately may begin at."""


class ObjectiveTally:
    """Two numbers that grow, and what they were at some moments of the last minutes."""

    __slots__ = ("_first_byte_s", "_marks", "answers", "objective", "within")

    def __init__(self, objective: ServiceObjective) -> None:
        self.objective = objective
        self._first_byte_s = objective.first_byte_s
        self.answers = self.within = 0
        self._marks = deque([(-inf, 0, 0)])

    def ended(self, is_ok: bool, first_byte_s: float | None) -> None:
        """A request ended: one that failed misses, one that was answered well and without a body tells nothing."""
        if not is_ok:
            self.answers += 1
        elif first_byte_s is not None:
            self.answers += 1
            if first_byte_s <= self._first_byte_s:
                self.within += 1

    def report(self, model: str, now: float) -> ObjectiveReport:
        """What came since LATELY_S ago, give or take a step, and ever; to be asked for more often than a step.

        Args:
            now: of any clock (s) that never goes back.
        """
        marks = self._marks
        if now - marks[-1][0] >= STEP_S:
            marks.append((now, self.answers, self.within))
        while len(marks) > 1 and now - marks[1][0] >= LATELY_S:
            marks.popleft()
        _, answers, within = marks[0]
        objective = self.objective
        return ObjectiveReport(
            model,
            objective.first_byte_s,
            objective.share,
            self.answers - answers,
            self.within - within,
            self.answers,
            self.within,
        )
