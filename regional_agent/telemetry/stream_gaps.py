"""Measures the inter-token latency of a sample of the streamed responses, at the writes to clients.

A stream that is not sampled costs one comparison per token.
"""

from __future__ import annotations

import time
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

    def wrote(self) -> None:
        """Record that a part of the response is written to the client now."""
        now, before = time.monotonic(), self._wrote_at
        self._wrote_at = now
        if before:
            self._gaps.observe(now - before)
