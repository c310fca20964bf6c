"""Reads regular files, and nothing else: the only module that opens configuration files for reading.

A FIFO without a writer, a device or a socket in place of a file would block the process for ever, and an endless one
would exhaust its memory. Symbolic links to regular files are followed, because Kubernetes mounts files through them.
A file on a network file system that does not respond still blocks; `ThreadedRead` reads off the event loop, and
`watched_files` bounds its time.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple, TypeVar

CHUNK_BYTES = 256 * 1024
"""Size (bytes) of one read: a single read of a large file delays the event loop by tens of milliseconds, even in a
thread."""

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Maximum size (bytes) of a line of a file that is read line by line; entries of logs are far smaller."""

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

Stamp = tuple[int, int, int, int, int, int]


class UnusableFile(Exception):
    """A file cannot be used; the message names the file and the remedy, and contains no secret."""


class PlainFile(NamedTuple):
    """The content of a file, and its state when it was read."""

    content: bytes
    mode: int
    stamp: Stamp


def file_stamp(file: Path) -> Stamp | None:
    """Return a value that changes when a file is replaced or written, or its mode or owner changes; None if missing."""
    try:
        return _stamp(file.stat())
    except OSError:
        return None


def read_plain_file(path: Path, max_bytes: int) -> PlainFile:
    """Return the content of a regular file.

    Raises:
        OSError: the file is missing, unreadable or larger than `max_bytes`, is not a regular file, or changed while it
            was read, so that its content could be a mixture; `strerror` has the reason.
    """
    with open_plain_file(path) as file:
        status = os.fstat(file.fileno())
        copy = BytesIO()
        while copy.tell() <= max_bytes and (chunk := file.read(CHUNK_BYTES)):
            copy.write(chunk)
        if copy.tell() > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
        after = os.fstat(file.fileno())
    if (after.st_mtime_ns, after.st_size) != (status.st_mtime_ns, status.st_size) or copy.tell() != status.st_size:
        raise OSError(errno.EAGAIN, "changed while it was read; write the new file beside it and rename it")
    return PlainFile(copy.getvalue(), status.st_mode, _stamp(status))


def open_plain_file(path: Path) -> BinaryIO:
    """Open a regular file for reading in parts, where it may be too large for `read_plain_file`.

    Raises:
        OSError: the file cannot be opened, or is not a regular file; `strerror` has the reason.
    """
    # Checked before the file is opened, too, because opening a device may have effects.
    _require_regular(os.stat(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _require_regular(os.fstat(descriptor))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file, which may be larger than the memory.

    Raises:
        OSError: the file cannot be opened, is not a regular file, or has a line of more than MAX_LINE_BYTES, such as
            one that a crash filled with zeros; `strerror` has the reason.
    """
    with open_plain_file(path) as file:
        number = 1
        while line := file.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise OSError(errno.EFBIG, f"line {number} has more than {MAX_LINE_BYTES} bytes")
            yield line
            number += 1


def _require_regular(status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"{_KINDS.get(kind, 'not a file')}, not a regular file")


def _stamp(status: os.stat_result) -> Stamp:
    # With mode and owner, so that a file that could not be read is tried again once they are corrected.
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, status.st_uid, status.st_gid


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
