"""Leaky buckets by key, in a table of bounded size: a burst, then a constant rate."""

from __future__ import annotations

from collections import OrderedDict

ROUNDING_S = 1e-6
"""Error (s) of sums of many small times, which is no time to wait."""


class LeakyBuckets:
    """One bucket for each key; the bucket of a key that the table lacks is empty."""

    __slots__ = ("_drain_s", "_empty_at", "_max_excess_s", "_max_keys", "_size")

    def __init__(self, size: float, drain_s: float, max_keys: int, max_excess_s: float = 0.0) -> None:
        """Start empty.

        Args:
            size: what fits into a bucket.
            drain_s: time (s) in which one unit leaves a bucket.
            max_keys: number of buckets; above it, the bucket that was filled the longest time ago is dropped.
            max_excess_s: time (s) by which what did not fit prolongs the wait at most.
        """
        self._size = size
        self._max_excess_s = max_excess_s
        self._drain_s = drain_s
        self._max_keys = max_keys
        self._empty_at: OrderedDict[str, float] = OrderedDict()
        """Time (s) at which a bucket is empty, by key."""

    def __len__(self) -> int:
        return len(self._empty_at)

    def wait_s(self, key: str, now: float) -> float:
        """Return the time (s) until one unit fits into the bucket of a key; 0 if it fits now."""
        empty_at = self._empty_at.get(key)
        wait_s = 0.0 if empty_at is None else empty_at - now - (self._size - 1) * self._drain_s
        return wait_s if wait_s > ROUNDING_S else 0.0

    def add(self, key: str, now: float, count: float = 1) -> None:
        """Add `count` units to the bucket of a key. `now` in s."""
        empty_at = max(now, self._empty_at.pop(key, now)) + count * self._drain_s
        self._empty_at[key] = min(empty_at, now + self._size * self._drain_s + self._max_excess_s)
        if len(self._empty_at) > self._max_keys:
            self._empty_at.popitem(last=False)
