"""The turns that lower priorities of a model receive while requests of higher priorities wait.

A higher priority is served first, with two exceptions. A priority that waits receives a reserve: a share of the work
that starts for higher priorities. And a priority of which no request has started for a while receives one turn (aging).
What a priority received beyond its reserve is kept as a debt; what it did not need is not saved up. The batch priority
has neither: it uses what is idle.
"""

from __future__ import annotations

from typing import Final

from penstock.policy.kinds.models import DEFAULT_AGING_S, DEFAULT_RESERVE_PERCENT
from penstock.policy.kinds.tenants import BATCH_PRIORITY

TURN_RANK: Final = 2000
"""Rank of a request of a lower priority whose turn it is, above all priorities."""


class _Level:
    """A priority with waiting requests, or with a debt."""

    def __init__(self, since: float) -> None:
        self.owed_s = 0.0
        """Work (s) that its reserve has granted and that has not started; negative for a debt."""
        self.since = since
        """Time (s) since which requests of the priority wait without a start."""
        self.waits = True


class PriorityTurns:
    """The reserves of the priorities of one model at one agent."""

    def __init__(self) -> None:
        """Create turns with the defaults of the policy."""
        self.reserve = DEFAULT_RESERVE_PERCENT / 100.0
        """Share (0-1) of the work of higher priorities that a waiting priority receives."""
        self.aging_s = DEFAULT_AGING_S
        """Time (s) without a start after which a waiting priority has a turn; 0: never."""
        self.levels: dict[int, _Level] = {}
        """By priority: those with waiting requests, or with a debt."""

    def begin_waiting(self, priority: int, now: float) -> None:
        """Record that the first request of a priority joins the queue at `now` (s)."""
        level = self.levels.get(priority)
        if level is None:
            self.levels[priority] = _Level(now)
        else:
            level.waits, level.since = True, now

    def end_waiting(self, priority: int) -> None:
        """Record that no request of a priority waits any longer."""
        level = self.levels.get(priority)
        if level is not None:
            level.waits = False
            if level.owed_s >= 0.0:
                del self.levels[priority]

    def started(self, priority: int, work_s: float, now: float) -> None:
        """Record that a request of a priority with estimated work (s) starts at `now` (s), here or at another agent."""
        paid: list[int] = []
        for each, level in self.levels.items():
            if each < priority:
                level.owed_s += work_s * self.reserve
                if not level.waits and level.owed_s >= 0.0:
                    paid.append(each)
        own = self.levels.get(priority)
        if own is not None:
            if own.owed_s > 0.0 or self._higher_waits(priority):
                own.owed_s -= work_s
            own.since = now
        for each in paid:
            del self.levels[each]

    def next(self, now: float, highest: int) -> int | None:
        """Return the priority below `highest` whose turn it is at `now` (s); None for no such priority."""
        found = None
        for priority, level in self.levels.items():
            if level.waits and BATCH_PRIORITY < priority < highest and (found is None or priority > found):
                aged = self.aging_s > 0.0 and now - level.since >= self.aging_s
                if aged or (level.owed_s > 0.0 and self.reserve > 0.0):
                    found = priority
        return found

    def _higher_waits(self, priority: int) -> bool:
        return any(level.waits and each > priority for each, level in self.levels.items())
