"""Waiting in tests for what nobody announces: as long as a busy machine may need, and no longer than it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""Bound of waits that nothing is measured by, so that a busy machine fails no test."""


async def until(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait until `holds`, for what can be seen at once."""
    deadline = asyncio.get_running_loop().time() + within_s
    wait_s = 0.0
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "it never came true"
        await asyncio.sleep(wait_s)
        wait_s = min(0.02, wait_s + 0.0001)


async def until_told(holds: Callable[[], Awaitable[bool]], within_s: float = PATIENCE_S) -> None:
    """Wait until `holds`, for what must be asked for."""
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.02)


async def found(look: Callable[[], Awaitable[T | None]], within_s: float = PATIENCE_S) -> T:
    """What a look finds, as soon as it finds anything that is not None, for what must be asked for."""
    async with asyncio.timeout(within_s):
        while True:
            there = await look()
            if there is not None:
                return there
            await asyncio.sleep(0.02)
