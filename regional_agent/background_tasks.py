"""Runs the background loops of an agent: logs and restarts failed loops, and aligns the wake-ups of periodic loops.

Wake-ups are the main cost of an idle agent, so loops with the same period wake the process together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import structlog

RESTART_AFTER_S = 1.0
"""Delay (s) before a failed loop is restarted."""

REPEAT_CANCEL_S = 0.2
"""Time (s) after which a task that ignored its cancellation is cancelled again."""

log = structlog.get_logger()


def keep_running(name: str, loop: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """Create a task that runs `loop` until it is cancelled, and restarts it after a failure."""
    return asyncio.create_task(_keep_running(name, loop), name=name)


async def sleep_until_tick(period_s: float) -> None:
    """Sleep until a tick, a multiple of `period_s` (s) of the event loop's clock; see `until_tick_s`."""
    await asyncio.sleep(until_tick_s(asyncio.get_running_loop().time(), period_s))


def until_tick_s(now: float, period_s: float) -> float:
    """Return the time (s) until the next tick. Skips a tick within half a period, because timers may fire early."""
    return (round(now / period_s) + 1) * period_s - now


async def wait_for_event(event: asyncio.Event, *, at_least_s: float, at_most_s: float) -> None:
    """Wait until `event` is set, but at least `at_least_s` and at most `at_most_s`."""
    clock = asyncio.get_running_loop().time
    began_at = clock()
    if not event.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await event.wait()
    left_s = began_at + at_least_s - clock()
    if left_s > 0:
        await asyncio.sleep(left_s)


async def _keep_running(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await loop()
        except Exception:
            # A defect of one loop must not stop the proxy or the other loops.
            log.exception("background loop failed; restarting it", loop=name)
        await asyncio.sleep(RESTART_AFTER_S)


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until all have ended.

    Libraries may lose a cancellation (redis-py does while it connects), so the cancellation is repeated.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=REPEAT_CANCEL_S)
