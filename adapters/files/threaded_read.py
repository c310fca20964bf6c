"""Blocking reads of files, off the event loop and within a bound of time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from adapters.files.plain_file import UnusableFile

STALL_S = 5.0
"""Time (s) after which a read has stalled: network file systems may not respond for minutes."""

T = TypeVar("T")


class FileStalled(UnusableFile):
    """The file system did not respond in time."""


class ThreadedRead(Generic[T]):
    """A blocking read of files that runs in a thread. A read that stalls occupies one thread, until it ends.

    The thread is a daemon, and not of asyncio's pool, so that reads that stall delay neither other work nor the exit of
    the process.

    Args:
        read: reads files.
        what: what is read, for messages.
        stall_s: time after which a read has stalled, in seconds.
    """

    def __init__(self, read: Callable[[], T], what: str, stall_s: float = STALL_S) -> None:
        self._read = read
        self._what = what
        self._stall_s = stall_s
        self._running: asyncio.Future[T] | None = None

    async def __call__(self) -> T:
        """Return the result of the read, or of the one that stalled before and has ended now.

        Raises:
            FileStalled: the file system does not respond.
        """
        running, stall_s = self._running, self._stall_s
        if running is None:
            running = self._start()
            self._running = running
        done, _ = await asyncio.wait({running}, timeout=stall_s)
        if not done:
            raise FileStalled(f"{self._what}: not read within {stall_s:g} s; check the file system")
        if self._running is running:
            self._running = None
        return running.result()

    def _start(self) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            settle: Callable[[], None]
            try:
                result = self._read()
            except Exception as error:
                failure = error
                settle = lambda: future.set_exception(failure)  # noqa: E731
            else:
                settle = lambda: future.set_result(result)  # noqa: E731
            with suppress(RuntimeError):  # the event loop is closed: the process ends
                loop.call_soon_threadsafe(settle)

        threading.Thread(target=run, name=f"read {self._what}", daemon=True).start()
        return future
