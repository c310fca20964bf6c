"""Watchdog of an event loop: measures how late the loop runs what is due."""

from __future__ import annotations

import asyncio
import time

import structlog
from prometheus_client import CollectorRegistry, Histogram

INTERVAL_S = 0.1
"""Time (s) between two measurements."""

STALL_S = 1.0
"""Delay (s) from which a stall is logged."""

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds (s) of the buckets of delays."""

_log = structlog.get_logger(__name__)


class LoopDelay:
    """Measures the delay of the running event loop.

    Args:
        registry: registry of the metric.
        prefix: prefix of the metric's name.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._delays = Histogram(
            f"{prefix}_event_loop_delay_seconds",
            "Seconds by which the event loop runs a timer late, measured ten times a second: how long the process"
            " answers nothing.",
            buckets=BUCKETS_S,
            registry=registry,
        )

    async def measure(self) -> None:
        """Measure until cancelled."""
        while True:
            due_at = time.monotonic() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self.record(max(0.0, time.monotonic() - due_at))

    def record(self, delay_s: float) -> None:
        """Record a delay (s)."""
        self._delays.observe(delay_s)
        if delay_s >= STALL_S:
            _log.warning("the event loop was stalled", seconds=round(delay_s, 3))
