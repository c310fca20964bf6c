"""Virtual time: what is due happens in order, at once, and the same way every time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], None]


class VirtualClock:
    """A heap of things to do. Times are seconds since it was made."""

    def __init__(self) -> None:
        """Nothing is due."""
        self.now = 0.0
        self._due: list[tuple[float, int, Action]] = []
        self._order = count()

    def at(self, when: float, action: Action) -> None:
        """Do something at `when`; of what is due at one time, the first said comes first."""
        heappush(self._due, (max(when, self.now), next(self._order), action))

    def step(self) -> None:
        """Let time pass until the next thing is due, and do it."""
        self.now, _, action = heappop(self._due)
        action()
