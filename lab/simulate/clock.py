"""A virtual clock: scheduled actions run in order, without waiting, and deterministically."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], None]


class VirtualClock:
    """A heap of scheduled actions. Times are seconds since the clock was created."""

    def __init__(self) -> None:
        """Create a clock without actions."""
        self.now = 0.0
        self._due: list[tuple[float, int, Action]] = []
        self._order = count()

    def at(self, when: float, action: Action) -> None:
        """Schedule `action` at `when`; actions of the same time run in the order in which they were scheduled."""
        heappush(self._due, (max(when, self.now), next(self._order), action))

    @property
    def next_at(self) -> float | None:
        """Time (s) of the next action; None if there is none."""
        return self._due[0][0] if self._due else None

    def step(self) -> None:
        """Advance to the next action and run it."""
        self.now, _, action = heappop(self._due)
        action()
