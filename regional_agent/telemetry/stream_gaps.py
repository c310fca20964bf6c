"""Measures the inter-token latency of a sample of the streamed responses, as their clients see it.

A token costs a stream that is not sampled one comparison.
"""

from __future__ import annotations

import time
from typing import Final

from regional_agent.telemetry.request_metrics import DurationHistogram

STREAMS_PER_SAMPLE: Final = 16
"""One of so many streams is measured, the first one included."""


class StreamGaps:
    """The gaps between the writes of one response."""

    __slots__ = ("_gaps", "_wrote_at")

    def __init__(self, gaps: DurationHistogram) -> None:
        """Count the gaps in `gaps`."""
        self._gaps = gaps
        self._wrote_at = 0.0
        """Time (s) of the last write; 0 before the first."""

    def wrote(self) -> None:
        """A part of the response is written to the client now."""
        now, before = time.monotonic(), self._wrote_at
        self._wrote_at = now
        if before:
            self._gaps.observe(now - before)
