"""Loops that must not die silently: what an agent does beside serving, restarted and logged if it ever breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

RESTART_AFTER_S = 1.0
"""A loop that broke begins again after this long (s), so that one that breaks at once does not spin."""

REPEAT_CANCEL_S = 0.2
"""A task that still runs this long (s) after it was cancelled is cancelled again."""

log = structlog.get_logger()


def keep_running(what: str, loop: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """A task that runs `loop`, which never returns of its own accord, until it is cancelled."""
    return asyncio.create_task(_keep_running(what, loop), name=what)


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
