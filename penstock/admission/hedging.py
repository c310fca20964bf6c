"""Decides when a request is also sent to a second endpoint: after the 95th percentile of similar requests, by budget.

After Dean and Barroso, "The tail at scale" (CACM 2013): to defer the second attempt until the first has taken longer
than the 95th percentile limits the extra load to about 5 %, and shortens the tail considerably. The budget bounds the
extra load also while all endpoints have become slower, as in Finagle's BackupRequestFilter.
"""

from __future__ import annotations

from itertools import accumulate
from math import ceil, log
from typing import Final

PERCENTILE: Final = 0.95
"""Share of the requests that complete before the second attempt is sent."""

MIN_SAMPLES: Final = 100
"""Number of completed requests from which on the percentile is used."""

MEMORY_SAMPLES: Final = 2_000
"""Total weight of the samples in a histogram at which the weight of each sample is halved."""

MIN_S: Final = 0.001
"""Upper bound (s) of the first bucket of a histogram."""

GROWTH: Final = 1.1
"""Ratio of the upper bounds of neighbouring buckets, which bounds the error of a percentile."""

BUCKETS: Final = 128
"""Number of buckets of a histogram; the last bucket begins at 164 s."""

MAX_HISTOGRAMS: Final = 1_024
"""Maximum number of histograms, one for each route and model; beyond it, the oldest histogram is dropped."""

SHARE: Final = 0.05
"""Maximum mean number of second attempts per request."""

MAX_BURST: Final = 10.0
"""Maximum number of second attempts at once after an interval without second attempts."""

_LOG_GROWTH: Final = log(GROWTH)


class LatencyHistogram:
    """The recent completion times of similar requests, in buckets of a constant ratio."""

    __slots__ = ("_counts", "_recorded", "_total", "_value_s")

    def __init__(self) -> None:
        self._counts = [0.0] * BUCKETS
        self._total = 0.0
        self._recorded = 0
        self._value_s: float | None = None
        """The percentile (s); None if a newer sample requires a new computation."""

    def record(self, took_s: float) -> None:
        """Record the completion time (s) of one request."""
        index = 0 if took_s <= MIN_S else min(BUCKETS - 1, ceil(log(took_s / MIN_S) / _LOG_GROWTH))
        self._counts[index] += 1.0
        self._total += 1.0
        self._recorded += 1
        self._value_s = None
        if self._total >= MEMORY_SAMPLES:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2

    def percentile_s(self) -> float | None:
        """Return the time (s) within which PERCENTILE of the requests completed, at most GROWTH times too long.

        None while there are fewer than MIN_SAMPLES samples.
        """
        if self._recorded < MIN_SAMPLES:
            return None
        if self._value_s is None:
            self._value_s = self._find()
        return self._value_s

    def _find(self) -> float:
        """Return the upper bound (s) of the bucket that contains the percentile."""
        wanted = PERCENTILE * self._total - 1e-9
        index = next(index for index, total in enumerate(accumulate(self._counts)) if total >= wanted)
        return MIN_S * float(GROWTH**index)


class HedgeDelays:
    """The delay of the second attempt, for each route and model."""

    def __init__(self) -> None:
        """Create delays without samples."""
        self._histograms: dict[tuple[str, str], LatencyHistogram] = {}

    def record(self, route: str, model: str, took_s: float) -> None:
        """Record the time (s) in which a request was completed, from its first attempt on."""
        histogram = self._histograms.get((route, model))
        if histogram is None:
            if len(self._histograms) >= MAX_HISTOGRAMS:
                del self._histograms[next(iter(self._histograms))]
            histogram = self._histograms[route, model] = LatencyHistogram()
        histogram.record(took_s)

    def delay_s(self, route: str, model: str) -> float | None:
        """Return the time (s) after which a second attempt is sent; None while too few requests have completed."""
        histogram = self._histograms.get((route, model))
        return None if histogram is None else histogram.percentile_s()


class HedgeBudget:
    """Limits second attempts to SHARE of the requests, with a bounded burst. Starts empty."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0.0

    def request(self) -> None:
        """Count a request that may have a second attempt."""
        self._left = min(MAX_BURST, self._left + SHARE)

    @property
    def allows_one(self) -> bool:
        """Whether one more second attempt is allowed."""
        return self._left >= 1.0 - 1e-9

    def withdraw(self) -> None:
        """Count a second attempt that `allows_one` allowed."""
        self._left -= 1.0


class Hedging:
    """The delays and the budget that all second attempts of an agent share."""

    __slots__ = ("budget", "delays")

    def __init__(self) -> None:
        """Create a budget without requests, and delays without samples."""
        self.delays = HedgeDelays()
        self.budget = HedgeBudget()
