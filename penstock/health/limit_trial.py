"""A trial of `concurrency_limit`: two limits in turn, and whether their throughputs differ clearly enough to end it."""

from __future__ import annotations

from math import log
from typing import Final

from penstock.health.throughput_fit import Growth

MIN_GROWTH: Final = 0.05
"""Elasticity of throughput above which a higher limit is kept: 10 % more requests at once for 0.5 % more throughput."""

MAX_GROWTH_GIVEN_UP: Final = 0.2
"""Elasticity, error included, below which a lower limit is kept. Higher than MIN_GROWTH, because the errors of a small
step are larger than either, and a limit that is too low costs more than one that is too high."""

MIN_SIDES: Final = 4
MAX_SIDES: Final = 8
"""Sides of a trial, at least and at most. Two suffice for a result beyond CLEAR."""

CLEAR: Final = 0.3
"""Difference of an elasticity from the deciding one that needs no second look."""

DEPENDENCE: Final = 2.0
"""Factor of the standard error: requests of the same minute are not independent."""


class LimitTrial:
    """A comparison of two limits, in turn."""

    __slots__ = ("area", "by_queue", "high", "low", "passed_s", "sides", "up")

    def __init__(self, low: int, high: int, *, up: bool, by_queue: bool) -> None:
        """Create a trial without sides; `low` and `high` are its limits, in requests."""
        self.low = low
        self.high = high
        self.up = up
        """Whether the present limit is the lower one."""
        self.by_queue = by_queue
        """Whether requests that wait in the engine are the reason."""
        self.sides = 0
        """Sides that have ended, the one before the trial included."""
        self.area = [0.0, 0.0]
        """Integral of the concurrency over time at the lower and at the higher limit."""
        self.passed_s = [0.0, 0.0]

    def add_side(self, limit: int, area: float, passed_s: float) -> None:
        """Add a side of `passed_s` seconds at a limit; `area` is the integral of the concurrency (request-seconds)."""
        self.sides += 1
        self.area[limit == self.high] += area
        self.passed_s[limit == self.high] += passed_s

    def concurrency(self, *, high: bool) -> float:
        """The mean concurrency that was measured at one of the limits; 0 before."""
        return self.area[high] / self.passed_s[high] if self.passed_s[high] > 0.0 else 0.0

    def contrast(self) -> float:
        """Logarithm of the ratio of the concurrencies that were measured."""
        low, high = self.concurrency(high=False), self.concurrency(high=True)
        return log(high / low) if high > low > 0.0 else 0.0

    @property
    def deciding(self) -> float:
        """The elasticity that decides between the limits."""
        return MIN_GROWTH if self.up else MAX_GROWTH_GIVEN_UP

    def is_clear(self, growth: Growth) -> bool:
        """Whether more sides would hardly change the result."""
        away = abs(growth.elasticity - self.deciding)
        enough = self.sides >= (2 if away >= CLEAR else MIN_SIDES)
        return self.sides >= MAX_SIDES or (enough and away > DEPENDENCE * growth.error)
