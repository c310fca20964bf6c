"""Threads for work of requests that would delay the event loop: decoding and encoding of large values, comparisons.

The threads are separate from those of asyncio's default executor, so that requests never delay the planner or the
policy source, which use the default executor. A caller uses one thread at a time, so that the others need not wait for
more than one piece of its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar
from weakref import WeakValueDictionary

THREADS = 2
"""Number of threads. More would not compute faster, because only one thread runs Python at a time."""

T = TypeVar("T")

working_for: ContextVar[str] = ContextVar("working_for", default="")
"""Name of the caller of the current request; empty outside requests."""

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="api")
_turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
"""By caller, while the caller has work."""


async def in_api_thread(work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs in a thread.

    `work` should not call functions in C that compute for more than some milliseconds: such a function keeps the
    interpreter's lock, and so delays the event loop as well.
    """
    async with _turns.setdefault(working_for.get(), asyncio.Lock()):
        return await asyncio.get_running_loop().run_in_executor(_threads, work)
