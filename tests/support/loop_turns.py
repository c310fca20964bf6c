"""How long work keeps an event loop from its other callbacks, in CPU time, so that a busy machine changes nothing."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from control_plane.api.serving import api_threads

T = TypeVar("T")
Select = Callable[[float | None], Any]


class LoopTurns:
    """The longest turn of an event loop, and the longest step of the API's threads.

    A turn is the CPU time of the loop's thread between two waits for events. A step is the CPU
    time of another thread between two calls or returns of functions, such as a call into C that keeps the
    interpreter's lock: the loop waits at most for one step.
    """

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._threads = ThreadPoolExecutor(api_threads.THREADS)

    async def reset(self) -> None:
        """Forget the longest turn."""
        await self.longest()
        self._longest_s = 0.0

    async def longest(self) -> float:
        """Return the longest turn or step, in seconds, including the current turn."""
        # The turn ends with the pause.
        await asyncio.sleep(0)
        return self._longest_s

    def measured(self, select: Select) -> Select:
        """Return the `select` of the loop's selector, with a measurement of what the loop does between two calls."""
        before = time.thread_time()

        def measured_select(timeout: float | None = None) -> Any:
            nonlocal before
            self._longest_s = max(self._longest_s, time.thread_time() - before)
            events = select(timeout)
            before = time.thread_time()
            return events

        return measured_select

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run work in a thread, as the executor of the API's threads, and measure its steps."""
        return self._threads.submit(self._measured, work)

    def _measured(self, work: Callable[[], T]) -> T:
        before = time.thread_time()

        def step(*_: Any) -> None:
            nonlocal before
            now = time.thread_time()
            self._longest_s = max(self._longest_s, now - before)
            before = time.thread_time()

        sys.setprofile(step)
        try:
            return work()
        finally:
            sys.setprofile(None)


@asynccontextmanager
async def measured_turns(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LoopTurns]:
    """Measure the turns of the running loop. Garbage collection, which serves no request, is postponed."""
    turns = LoopTurns()
    gc.collect()
    gc.disable()
    monkeypatch.setattr(api_threads, "_threads", turns)
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    try:
        with monkeypatch.context() as patched:
            patched.setattr(selector, "select", turns.measured(selector.select))
            yield turns
    finally:
        gc.enable()
