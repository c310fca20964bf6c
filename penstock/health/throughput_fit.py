"""Estimates from completions how throughput depends on concurrency.

By Little's law an endpoint's throughput, in seconds of work per second, is its concurrency divided by the time that a
request holds its slot per second of its work. Throughput can therefore be estimated from any part of the completions,
such as those of one of several agents, and requests whose work differs by a factor of a hundred are comparable.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Final, NamedTuple

MIN_COUNT: Final = 6
"""Minimum number of completions for an estimate, which has four parameters (intercept, two slopes, variance)."""

RIDGE: Final = 1e-4
"""Added to the variance of a concurrency, relative to the square of its mean, so that a concurrency that hardly varies
has no effect."""

MIN_OF_MEAN: Final = 0.02
"""Lower bound of an estimated time as a part of the mean."""


class Growth(NamedTuple):
    """How throughput grows with concurrency."""

    elasticity: float
    """Logarithm of the ratio of two throughputs, divided by that of their concurrencies: 1 for growth in proportion, 0
    for no growth."""
    error: float
    """Standard error of the elasticity, computed as if completions were independent."""


class ThroughputFit:
    """Time per second of work against two concurrencies: least squares, weighted by work.

    The concurrency at the start of a request determines its time in a queue; the mean concurrency until its end
    determines its time in a batch. The weights make the estimate a ratio of sums, which the fixed costs of short
    requests do not bias.
    """

    __slots__ = ("_s", "_x", "_xx", "_xz", "_y", "_yx", "_yy", "_yz", "_z", "_zz", "count")

    def __init__(self) -> None:
        """Create a fit without completions."""
        self.count = 0
        """Number of completions."""
        self._s = self._x = self._z = self._xx = self._xz = self._zz = 0.0
        self._y = self._yx = self._yz = self._yy = 0.0

    def add(self, at_start: float, mean: float, work_s: float, service_s: float) -> None:
        """Add a completion.

        Args:
            at_start: requests on the endpoint when the request began, including this request.
            mean: mean number of requests on the endpoint until the request ended.
            work_s: work of the request (s on the reference accelerator), above 0.
            service_s: time (s) for which the request held its slot.
        """
        self.count += 1
        self._s += work_s
        self._x += work_s * at_start
        self._z += work_s * mean
        self._xx += work_s * at_start * at_start
        self._xz += work_s * at_start * mean
        self._zz += work_s * mean * mean
        self._y += service_s
        self._yx += service_s * at_start
        self._yz += service_s * mean
        self._yy += service_s * service_s / work_s

    def growth(self, low: float, high: float) -> Growth | None:
        """The growth of throughput between two concurrencies above 0; None before there are enough completions."""
        if self.count < MIN_COUNT:
            return None
        s, x, z, y = self._s, self._x / self._s, self._z / self._s, self._y / self._s
        ridge = RIDGE * s * z * z
        xx, zz, xz = self._xx - s * x * x + ridge, self._zz - s * z * z + ridge, self._xz - s * x * z
        yx, yz, yy = self._yx - s * y * x, self._yz - s * y * z, self._yy - s * y * y
        determinant = xx * zz - xz * xz
        if determinant <= 0.0:
            return None
        by_start, by_mean = (yx * zz - yz * xz) / determinant, (yz * xx - yx * xz) / determinant
        middle = (low + high) / 2
        at_middle = y + by_start * (middle - x) + by_mean * (middle - z)
        half = (by_start + by_mean) * (high - low) / 2
        at_low, at_high = max(MIN_OF_MEAN * y, at_middle - half), max(MIN_OF_MEAN * y, at_middle + half)
        residual = max(0.0, yy - by_start * yx - by_mean * yz) / (self.count - 3)
        error = sqrt(max(0.0, residual * (xx + zz - 2.0 * xz) / determinant)) * (high - low) / sqrt(at_low * at_high)
        span = log(high / low)
        return Growth(1.0 - log(at_high / at_low) / span, error / span)
