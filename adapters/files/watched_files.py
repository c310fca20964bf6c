"""Files that are loaded again when they change, off the event loop and within a bound of time.

The last good content stays in force while a file cannot be used: it is invalid, unreadable, or on a file system that
does not respond. The problem is logged once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import structlog

from adapters.files.plain_file import FileStalled, Stamp, ThreadedRead, UnusableFile, file_stamp

CHECK_S = 2.0
"""Interval (s) between two checks for changed files."""

RETRY_FACTOR = 100.0
"""A load that failed is repeated although the files have not changed, since the clock or the mode of a directory may
have been corrected: at each check, or after this many times its CPU time where that is longer, since a large invalid
file must not be parsed all the time."""

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class ReloadedFiles(Protocol):
    """Files that are loaded again when they change; unusable content does not replace the last good one."""

    @property
    def problem(self) -> str | None:
        """Why the present files are not in force; empty or None if they are."""


class Watched(Protocol):
    """Files that are checked for changes."""

    async def check(self) -> bool:
        """Load the files again if they have changed; returns whether new content is in force."""


class _Loaded(NamedTuple, Generic[T]):
    """The result of a load: content, or the problem of the files."""

    stamps: tuple[Stamp | None, ...]
    content: T | None
    problem: str = ""
    retry_at: float = 0.0
    """Monotonic time (s) of the next load if the files do not change."""


_REQUIRED: Any = object()


class WatchedFiles(Generic[T]):
    """Loads files, and loads them again when one of them changes.

    Args:
        files: the files; None is a file that is not configured.
        load: reads the files; blocks.
        on_change: receives the new content after each change.
        fallback: content until a load has succeeded; without it, the first load must succeed.

    Raises:
        UnusableFile: the first load has failed, and there is no fallback.
    """

    def __init__(
        self,
        files: Iterable[Path | None],
        load: Callable[[], T],
        on_change: Callable[[T], object] = lambda _: None,
        *,
        fallback: T = _REQUIRED,
    ) -> None:
        self._files = tuple(file for file in files if file is not None)
        self._load = load
        self._on_change = on_change
        self._in_thread = ThreadedRead(self._look, ", ".join(map(str, self._files)))
        self._stamps = self._stamp()
        self._retry_at = 0.0
        self.problem = ""
        """Why the present files are not in force; empty if they are."""
        self.content: T = load() if fallback is _REQUIRED else fallback
        """The last good content."""
        if fallback is not _REQUIRED:
            self._apply(self._loaded(self._stamps))

    def reload_if_changed(self) -> bool:
        """Do what `check` does in this thread, blocking."""
        return self._apply(self._look())

    async def check(self) -> bool:
        """Load the files again if they have changed, or could not be used; returns whether new content is in force."""
        try:
            loaded = await self._in_thread()
        except FileStalled as error:
            loaded = _Loaded(self._stamps, None, str(error))
        return self._apply(loaded)

    def _look(self) -> _Loaded[T] | None:
        """Return the result of a load; None if the files have not changed."""
        stamps = self._stamp()
        if stamps == self._stamps and (not self.problem or time.monotonic() < self._retry_at):
            return None
        return self._loaded(stamps)

    def _loaded(self, stamps: tuple[Stamp | None, ...]) -> _Loaded[T]:
        began_s = time.thread_time()
        try:
            return _Loaded(stamps, self._load())
        except UnusableFile as error:
            pause_s = RETRY_FACTOR * (time.thread_time() - began_s)
            return _Loaded(stamps, None, str(error), time.monotonic() + pause_s if pause_s > CHECK_S else 0.0)

    def _apply(self, loaded: _Loaded[T] | None) -> bool:
        if loaded is None:
            return False
        before, self.problem = self.problem, loaded.problem
        self._stamps, self._retry_at = loaded.stamps, loaded.retry_at
        if loaded.problem:
            if loaded.problem != before:
                _log.error("file not loaded; the last good content stays in force", reason=loaded.problem)
            return False
        self.content = cast(T, loaded.content)
        self._on_change(self.content)
        _log.info("files loaded", files=[str(file) for file in self._files])
        return True

    def _stamp(self) -> tuple[Stamp | None, ...]:
        return tuple(file_stamp(file) for file in self._files)


async def keep_checking(watched: Iterable[Watched]) -> None:
    """Check files for changes until cancelled. Files that stall delay no others."""
    async with asyncio.TaskGroup() as tasks:
        for each in watched:
            tasks.create_task(_keep_checking(each))


async def _keep_checking(watched: Watched) -> None:
    while True:
        await asyncio.sleep(CHECK_S)
        try:
            await watched.check()
        except Exception:
            # A defect that concerns one file must not stop the checks of the file.
            _log.exception("check for changed files failed")
