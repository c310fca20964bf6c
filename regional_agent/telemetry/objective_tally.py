"""Counts how often one model meets its service objective, since the start and in the recent window."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from penstock.accounts.outcomes import Counts
from penstock.policy.service_objective import ObjectiveReport, ServiceObjective

_SUCCESS, _FAILURE, _IF_LATE = Counts.SUCCESS, Counts.FAILURE, Counts.IF_LATE
"""Module constants, since in Python 3.11 access to an enum member through its class is a function call."""

WINDOW_S: Final = 300.0
"""Length of the recent window in seconds: long enough for low request rates, short enough to show a failure."""

STEP_S: Final = 15.0
"""Time in seconds between two possible starts of the recent window."""


class ObjectiveTally:
    """Counters of finished requests and of requests within the objective, and their past values in the window."""

    __slots__ = ("_first_byte_s", "_marks", "answers", "objective", "within")

    def __init__(self, objective: ServiceObjective) -> None:
        self.objective = objective
        self._first_byte_s = objective.first_byte_s
        self.answers = self.within = 0
        self._marks = deque([(-inf, 0, 0)])

    def ended(self, counts: Counts, first_byte_s: float | None, total_s: float) -> None:
        """Count a request that ended.

        Args:
            counts: how the outcome counts. A success without a body is not counted.
            first_byte_s: time (s) to the first byte of the response; None if no response began.
            total_s: time (s) to the end of the request.
        """
        if counts is _SUCCESS:
            if first_byte_s is not None:
                self.answers += 1
                if first_byte_s <= self._first_byte_s:
                    self.within += 1
        elif counts is _FAILURE or (
            counts is _IF_LATE and (total_s if first_byte_s is None else first_byte_s) > self._first_byte_s
        ):
            self.answers += 1

    def report(self, model: str, now: float) -> ObjectiveReport:
        """Return the counts of the last WINDOW_S (within STEP_S) and since the start. Call it at least every STEP_S.

        Args:
            model: name of the model.
            now: monotonic time, in seconds.
        """
        marks = self._marks
        if now - marks[-1][0] >= STEP_S:
            marks.append((now, self.answers, self.within))
        while len(marks) > 1 and now - marks[1][0] >= WINDOW_S:
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
