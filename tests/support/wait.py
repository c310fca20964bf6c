"""Waits for conditions without an event: long enough for a busy machine, and no longer than necessary."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""Maximum time (s) of every wait, long enough for a busy machine. No test uses this value to measure time."""


def pauses() -> Iterator[float]:
    """Times (s) to sleep between two requests that ask for a condition, which take CPU time from what is waited for.

    A tenth of the time so far, at least 20 ms and at most 200 ms.
    """
    began = time.monotonic()
    while True:
        yield min(0.2, max(0.02, (time.monotonic() - began) / 10))


async def until(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait until `holds` returns true."""
    deadline = asyncio.get_running_loop().time() + within_s
    wait_s = 0.0
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not become true in time"
        await asyncio.sleep(wait_s)
        wait_s = min(0.02, wait_s + 0.0001)


async def until_async(holds: Callable[[], Awaitable[bool]], within_s: float = PATIENCE_S) -> None:
    """Wait until `holds` returns true; for conditions that need a request."""
    pause_s = pauses()
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110 (there is no event)
            await asyncio.sleep(next(pause_s))


async def found(look: Callable[[], Awaitable[T | None]], within_s: float = PATIENCE_S) -> T:
    """Return the first result of `look` that is not None."""
    pause_s = pauses()
    async with asyncio.timeout(within_s):
        while True:
            there = await look()
            if there is not None:
                return there
            await asyncio.sleep(next(pause_s))
