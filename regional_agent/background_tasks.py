"""Loops that must not die silently: what an agent does beside serving, restarted and logged if it ever breaks.

To be woken is what an agent that has nothing to do pays for, so loops wake it together where they can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import structlog

RESTART_AFTER_S = 1.0
"""A loop that broke begins again after this long (s), so that one that breaks at once does not spin."""

REPEAT_CANCEL_S = 0.2
"""A task that still runs this long (s) after it was cancelled is cancelled again."""

log = structlog.get_logger()


def keep_running(what: str, loop: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """A task that runs `loop`, which never returns of its own accord, until it is cancelled."""
    return asyncio.create_task(_keep_running(what, loop), name=what)


async def beat(period_s: float) -> None:
    """Sleep until a multiple of `period_s` on the loop's clock: loops that keep the same beat wake the process once."""
    await asyncio.sleep(until_beat_s(asyncio.get_running_loop().time(), period_s))


def until_beat_s(now: float, period_s: float) -> float:
    """What is left (s) until the beat to sleep for: not the next one where that is near, for timers ring early too."""
    return (round(now / period_s) + 1) * period_s - now


async def rest(wake: asyncio.Event, *, at_least_s: float, at_most_s: float) -> None:
    """Wait for `wake`, `at_most_s`; and where it comes sooner than `at_least_s`, until then."""
    clock = asyncio.get_running_loop().time
    began_at = clock()
    if not wake.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await wake.wait()
    left_s = began_at + at_least_s - clock()
    if left_s > 0:
        await asyncio.sleep(left_s)


async def _keep_running(what: str, loop: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await loop()
        except Exception:
            # A defect, but one loop's defect must not take serving or the other loops with it.
            log.exception("background loop broke; it begins again", loop=what)
        await asyncio.sleep(RESTART_AFTER_S)


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, and return once nothing of them runs.

    Libraries lose a cancellation now and then (redis-py while it connects, for one), so it is repeated until heard.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=REPEAT_CANCEL_S)
