"""Threads for work of requests that would delay the event loop: decoding and encoding of large values, comparisons.

The threads are separate from those of asyncio's default executor, so that requests never delay the planner or the
policy source, which use the default executor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 2
"""Number of threads. More would not compute faster, because only one thread runs Python at a time."""

T = TypeVar("T")

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="api")


async def in_api_thread(work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs in a thread.

    `work` should not call functions in C that compute for more than some milliseconds: such a function keeps the
    interpreter's lock, and so delays the event loop as well.
    """
    return await asyncio.get_running_loop().run_in_executor(_threads, work)
