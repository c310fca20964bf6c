"""A virtual clock that runs scheduled actions in order of time, deterministically and without waiting."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], None]


class VirtualClock:
    """A queue of scheduled actions. Times are seconds since the creation of the clock."""

    def __init__(self) -> None:
        """Create a clock without actions."""
        self.now = 0.0
        self._due: list[tuple[float, int, Action]] = []
        self._order = count()

    def at(self, when: float, action: Action) -> None:
        """Schedule `action` at `when` (s); actions with equal times run in order of scheduling."""
        heappush(self._due, (max(when, self.now), next(self._order), action))

    @property
    def next_at(self) -> float | None:
        """Time (s) of the next action; None without actions."""
        return self._due[0][0] if self._due else None

    def step(self) -> None:
        """Advance to the next action and run it."""
        self.now, _, action = heappop(self._due)
        action()
