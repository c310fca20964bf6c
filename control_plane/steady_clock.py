"""A clock of Unix time that does not jump when the system clock is set."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_DIFFERENCE_S = 5.0
"""Difference (s) from the system clock up to which the clock stays as it is: signatures permit as much."""


class SteadyClock:
    """Returns Unix time (s) when called.

    Args:
        system: the system clock: Unix time (s).
        monotonic: monotonic time (s).
    """

    def __init__(
        self, system: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._system = system
        self._monotonic = monotonic
        self._offset_s = system() - monotonic()

    def __call__(self) -> float:
        """Unix time (s)."""
        return self._monotonic() + self._offset_s

    @property
    def behind_s(self) -> float:
        """Time (s) by which the clock is behind the system clock, which was set since; 0 up to MAX_DIFFERENCE_S."""
        # Read before and after, since the process may be stopped between two clocks.
        before, system, after = self(), self._system(), self()
        behind_s = min(system - before, 0.0) + max(system - after, 0.0)
        return behind_s if abs(behind_s) > MAX_DIFFERENCE_S else 0.0

    def set(self) -> None:
        """Set the clock by the system clock; it jumps."""
        self._offset_s = self._system() - self._monotonic()
