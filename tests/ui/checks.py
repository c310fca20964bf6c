"""How checks of the page run: a line for each, with its result."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path

from playwright.async_api import Browser, BrowserContext, Error, StorageState, ViewportSize

OUT = Path("out/ui")

PATIENCE_MS = 60_000.0
"""Time (ms) within which the page shows what it is expected to show, on a busy machine."""

WIDE: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}


async def opened(browser: Browser, session: StorageState | None = None, size: ViewportSize = WIDE) -> BrowserContext:
    """Open a browser profile of its own, as that of one person, with a patience that a busy machine needs."""
    context = await browser.new_context(storage_state=session, viewport=size, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    return context


async def checked(name: str, work: Awaitable[str | None]) -> int:
    """Await a check, which may return its measurement, and print a line; returns 1 if it failed, else 0."""
    failed = False
    try:
        result = await work or "ok"
    except (AssertionError, Error) as error:
        failed = True
        result = f"FAILED: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    print(f"{name}: {result}", flush=True)
    return int(failed)


async def cpu_share(pid: int, seconds: float) -> float:
    """The CPU time of a process over `seconds`, as a share of one core."""
    loop = asyncio.get_running_loop()
    before, began = _cpu_s(pid), loop.time()
    await asyncio.sleep(seconds)
    return (_cpu_s(pid) - before) / (loop.time() - began)


def _cpu_s(pid: int) -> float:
    """The CPU time (s) that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
