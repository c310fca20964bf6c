"""Counts how often one model meets one service objective, since the start and in the recent window."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from penstock.accounts.outcome_rules import Counts
from penstock.policy.service_objective import Measure, ObjectiveReport, objective_id

Judgement = tuple[str, bool]
"""The objective that counts a request, as `objective_id` names it, and whether the request met it."""

_SUCCESS: Final = Counts.SUCCESS
_FAILURE: Final = Counts.FAILURE
_IF_LATE: Final = Counts.IF_LATE
"""Module constants, since in Python 3.11 access to an enum member through its class is a function call."""

WINDOW_S: Final = 300.0
"""Length of the recent window in seconds: long enough for low request rates, short enough to show a failure."""

STEP_S: Final = 15.0
"""Time in seconds between two possible starts of the recent window."""


class ObjectiveTally:
    """Counters of finished requests and of requests within the objective, and their past values in the window."""

    def __init__(self, measure: Measure, limit_s: float, share: float) -> None:
        """Count the requests for which `measure` is at most `limit_s` (s); `share` is the target (0-1)."""
        self.measure = measure
        self.limit_s = limit_s
        self.share = share
        self.answers = self.within = 0
        name = objective_id(measure, limit_s, share)
        self._met: Judgement = (name, True)
        self._late: Judgement = (name, False)
        self._marks = deque([(-inf, 0, 0)])

    def ended(self, counts: Counts, measured_s: float | None, waited_s: float) -> Judgement | None:
        """Count a request that ended. Returns None if the objective does not count it.

        Args:
            counts: how the outcome counts. A success without a body is not counted.
            measured_s: the measured time (s); None if the response did not come so far.
            waited_s: time (s) for which the client waited.
        """
        if counts is _SUCCESS:
            if measured_s is not None:
                self.answers += 1
                if measured_s <= self.limit_s:
                    self.within += 1
                    return self._met
                return self._late
        elif counts is _FAILURE or (
            counts is _IF_LATE and (waited_s if measured_s is None else measured_s) > self.limit_s
        ):
            self.answers += 1
            return self._late
        return None

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
        recent = self.answers - answers, self.within - within
        return ObjectiveReport(model, self.limit_s, self.share, *recent, self.answers, self.within, self.measure)
