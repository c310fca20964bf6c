"""Measures the inter-token latency of a sample of the streamed responses, at the writes to clients.

A stream that is not sampled costs one comparison per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.meters.duration_histogram import DurationHistogram

STREAMS_PER_SAMPLE: Final = 16
"""Number of streams per measured stream; the first stream is measured."""


class StreamGaps:
    """The gaps between the writes of one response."""

    def __init__(self, gaps: DurationHistogram) -> None:
        """Record the gaps in the histogram `gaps`."""
        self._gaps = gaps
        self._wrote_at = 0.0
        """Time (s) of the last write; 0 before the first."""

    def wrote(self, now: float) -> None:
        """Record that a part of the response is written to the client at `now` (s)."""
        before, self._wrote_at = self._wrote_at, now
        if before:
            self._gaps.observe(now - before)


class SampledStreams:
    """Selects the streams to measure."""

    def __init__(self, gaps_of: Callable[[str], DurationHistogram]) -> None:
        """`gaps_of` returns the histogram of a model."""
        self._gaps_of = gaps_of
        self._until_sampled = 1

    def begin(self, model: str) -> StreamGaps | None:
        """Return the meter of a streamed response that begins now; None if the response is not sampled."""
        self._until_sampled -= 1
        if self._until_sampled:
            return None
        self._until_sampled = STREAMS_PER_SAMPLE
        return StreamGaps(self._gaps_of(model))
