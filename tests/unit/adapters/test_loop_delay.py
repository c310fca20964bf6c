"""The watchdog of an event loop records how long the loop was blocked."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry

from adapters.loop_delay import INTERVAL_S, LoopDelay
from tests.support.wait import until

BLOCKED_S = 0.4


async def test_a_blocked_loop_shows_in_the_metric() -> None:
    registry = CollectorRegistry()
    delay = LoopDelay(registry, "penstock")

    def above(seconds: float) -> float:
        """Number of measured delays above a bound of a bucket."""
        name = "penstock_event_loop_delay_seconds"
        total = registry.get_sample_value(f"{name}_count")
        below = registry.get_sample_value(f"{name}_bucket", {"le": str(seconds)})
        assert total is not None
        assert below is not None
        return total - below

    task = asyncio.create_task(delay.measure())
    await asyncio.sleep(0)
    # The measurement is due during the pause, and runs late by at least the rest of the pause.
    asyncio.get_running_loop().call_soon(time.sleep, BLOCKED_S)
    await until(lambda: above(0.25) > 0)
    assert BLOCKED_S - INTERVAL_S >= 0.25
    task.cancel()
