"""A trial of `concurrency_limit`: two limits in turn, and whether their throughputs differ clearly enough to end it."""

from __future__ import annotations

from math import log
from typing import Final

from penstock.health.throughput_fit import Growth

MIN_GROWTH: Final = 0.05
"""Elasticity of throughput above which a higher limit is kept: 10 % more requests at once for 0.5 % more throughput."""

MAX_GROWTH_GIVEN_UP: Final = 0.2
"""Elasticity, error included, below which a lower limit is kept. Higher than MIN_GROWTH, because the error of a small
step exceeds both thresholds, and a limit that is too low costs more than a limit that is too high."""

MIN_SIDES: Final = 4
MAX_SIDES: Final = 8
"""Minimum and maximum number of sides of a trial. Two sides suffice for a result beyond CLEAR."""

CLEAR: Final = 0.3
"""Difference between the measured and the deciding elasticity above which two sides suffice."""

DEPENDENCE: Final = 2.0
"""Factor on the standard error, since requests of the same minute are not independent."""


class LimitTrial:
    """A comparison of two limits that are applied in turn."""

    __slots__ = ("area", "by_queue", "high", "low", "passed_s", "sides", "up")

    def __init__(self, low: int, high: int, *, up: bool, by_queue: bool) -> None:
        """Create a trial without sides; `low` and `high` are its limits, in requests."""
        self.low = low
        self.high = high
        self.up = up
        """Whether the present limit is the lower one."""
        self.by_queue = by_queue
        """Whether requests that wait in the engine are the reason for the trial."""
        self.sides = 0
        """Number of sides that have ended, including the side before the trial."""
        self.area = [0.0, 0.0]
        """Integral of the concurrency over time at the lower and at the higher limit."""
        self.passed_s = [0.0, 0.0]

    def add_side(self, limit: int, area: float, passed_s: float) -> None:
        """Add a side of `passed_s` seconds at a limit; `area` is the integral of the concurrency (request-seconds)."""
        self.sides += 1
        self.area[limit == self.high] += area
        self.passed_s[limit == self.high] += passed_s

    def concurrency(self, *, high: bool) -> float:
        """The mean concurrency measured at one of the limits; 0 without a measurement."""
        return self.area[high] / self.passed_s[high] if self.passed_s[high] > 0.0 else 0.0

    def contrast(self) -> float:
        """Logarithm of the ratio of the two measured concurrencies; 0 unless the higher limit had the higher
        concurrency."""
        low, high = self.concurrency(high=False), self.concurrency(high=True)
        return log(high / low) if high > low > 0.0 else 0.0

    @property
    def deciding(self) -> float:
        """The elasticity that decides between the limits."""
        return MIN_GROWTH if self.up else MAX_GROWTH_GIVEN_UP

    def is_clear(self, growth: Growth) -> bool:
        """Whether the result is clear enough to end the trial, or the trial has MAX_SIDES sides."""
        away = abs(growth.elasticity - self.deciding)
        enough = self.sides >= (2 if away >= CLEAR else MIN_SIDES)
        return self.sides >= MAX_SIDES or (enough and away > DEPENDENCE * growth.error)
