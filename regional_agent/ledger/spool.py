"""The spool of an agent: the file that is written, the next one, and the thread that makes, syncs and seals files.

Appending costs no system call. The next file is made in advance, so that the event loop only switches to it. A record
survives the death of the process at once, and a loss of power after the next sync, a second later.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import structlog

from adapters.files.plain_file import read_plain_file
from penstock.ledger.spool_format import JobResult, Opening
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.ledger.spool_file import LAST_PUT_SUFFIX, SEALED_SUFFIX, UNSETTLED_SUFFIX, OpenSpoolFile, boot_id

FILE_BYTES: Final = 8 * 1024 * 1024
"""Size of a file that is written: about 30,000 requests."""

RESERVE_BYTES: Final = 1024 * 1024
"""Room in the last possible file that is kept for the ends of requests in progress."""


SEGMENT_S: Final = 60.0
"""Time (s) after which the next file is used."""

SYNC_S: Final = 1.0
"""Interval (s) between syncs: what a loss of power can cost."""

SCAN_S: Final = 5.0
"""Interval (s) between counts of the files of the spool."""

_MAX_NAME_BYTES: Final = 1024
"""Maximum size (bytes) of the name of a segment."""

log = structlog.get_logger()


class SpoolUse:
    """What the files of the spool occupy."""

    def __init__(
        self, total_bytes: int = 0, sealed: int = 0, oldest_at: float | None = None, last_put: str = ""
    ) -> None:
        self.total_bytes = total_bytes
        self.sealed = sealed
        """Number of files that wait for the store."""
        self.oldest_at = oldest_at
        """Unix time (s) of the oldest of them; None without one."""
        self.last_put = last_put
        """Name of the segment that was put into the store last; empty if none is known."""


class Spool:
    """Appends encoded records. Used by the event loop, except for what the thread does."""

    def __init__(
        self,
        folder: Path,
        agent: AgentInstance,
        max_bytes: int,
        open_starts: Callable[[], Iterable[bytes]],
        *,
        size_bytes: int = FILE_BYTES,
    ) -> None:
        """Create a closed spool in `folder`, which is created if necessary.

        Args:
            max_bytes: maximum size of all files.
            open_starts: returns an encoded start for each request in progress.
            size_bytes: size of a file.
        """
        self.folder = folder
        self._agent = agent
        self._max_bytes = max_bytes
        self._open_starts = open_starts
        self._size_bytes = size_bytes
        self.boot = boot_id()
        self._numbers = count(1)
        self._file: OpenSpoolFile | None = None
        self._next: OpenSpoolFile | None = None
        self._retired: deque[OpenSpoolFile] = deque()
        self._switch_at = 0.0
        self._wake = threading.Event()
        self._stopping = False
        self._worker: threading.Thread | None = None
        self.lost_records = 0
        """Records for which there was no room."""
        self.problem = ""
        """Why no further file can be made; empty if one can."""
        self.use = SpoolUse()

    @property
    def is_open(self) -> bool:
        """Whether records are kept."""
        return self._file is not None

    @property
    def is_full(self) -> bool:
        """Whether there is no room for further requests, only for the ends of those in progress."""
        file = self._file
        return self._next is None and file is not None and file.end > file.size_bytes - self._reserve_bytes

    @property
    def _reserve_bytes(self) -> int:
        return min(RESERVE_BYTES, self._size_bytes // 4)

    def open(self) -> None:
        """Make the first file and start the thread; blocks for a few milliseconds. Raises OSError."""
        if self._file is not None:
            return
        self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        file = self._new_file()
        for start in self._open_starts():
            file.append(start)
        file.begin()
        self._file, self._stopping = file, False
        self._switch_at = time.monotonic() + SEGMENT_S
        self._worker = threading.Thread(target=self._work, name="ledger spool", daemon=True)
        self._worker.start()

    def close(self, *, seals_always: bool = False) -> None:
        """Stop the thread and seal what was written; blocks until the disk has it.

        While requests are in progress, the file is left as after the death of the process, so that their starts count.

        Args:
            seals_always: whether the file is sealed even then. For a process that goes on: it may open the spool again
                before the requests end, and would record their ends besides the starts that count.
        """
        file, worker = self._file, self._worker
        if file is None or worker is None:
            return
        self._file = None
        # The thread syncs and seals the same files, without a lock; it ends before this thread does so.
        self._stopping = True
        self._wake.set()
        worker.join()
        self._worker = None
        is_left = not seals_always and any(True for _ in self._open_starts())
        if not is_left:
            self._retired.append(file)
        try:
            self._seal_retired()
            if is_left:
                file.sync()
        except OSError as error:
            self._report_error(error)
        finally:
            if is_left:
                file.close()

    def append(self, encoded: bytes) -> None:
        """Append a record; counts it as lost if there is no room."""
        file = self._file
        if file is not None and not file.append(encoded) and not self.switch(encoded):
            self.lost_records += 1

    def append_all(self, encoded: Sequence[bytes], size_bytes: int) -> bool:
        """Append records to one file, whose content has a size with their lengths; False if none has the room."""
        file = self._file
        if file is not None and file.end + size_bytes >= self._size_bytes:
            self.switch()
            file = self._file
        if file is None or file.end + size_bytes >= self._size_bytes:
            return False
        for each in encoded:
            self.append(each)
        return True

    def tick(self, now: float) -> None:
        """Use the next file if it is time (monotonic, s) or the file is half full. Called often."""
        file = self._file
        if file is not None and (now >= self._switch_at or file.end > self._size_bytes // 2):
            self.switch()

    def switch(self, encoded: bytes = b"") -> bool:
        """Use the next file, if the thread has made one, with `encoded` as its first record besides the starts.

        Returns whether the record was appended.
        """
        file, following = self._file, self._next
        if file is None or following is None:
            return False
        self._next = None
        for start in self._open_starts():
            following.append(start)
        appended = following.append(encoded) if encoded else False
        following.begin()
        self._file = following
        self._retired.append(file)
        self._switch_at = time.monotonic() + SEGMENT_S
        self._wake.set()
        return appended

    def new_opening(self, result: JobResult | None = None) -> Opening:
        """Return the first record of a further file, whose requests are paid for if the job store has `result`."""
        return Opening(self._agent.region, self._agent.name, self._agent.epoch, next(self._numbers), result)

    def _new_file(self) -> OpenSpoolFile:
        return OpenSpoolFile(self.folder, self.new_opening(), self._size_bytes, self.boot)

    # the thread

    def _work(self) -> None:
        scan_at = 0.0
        while True:
            stopping = self._stopping
            try:
                self._seal_retired()
                if stopping:
                    break
                file = self._file
                if file is not None:
                    file.sync()
                if time.monotonic() >= scan_at:
                    self.use, scan_at = use_of(self.folder), time.monotonic() + SCAN_S
                self._make_next()
                self._report("")
            except OSError as error:
                self._report_error(error)
                if stopping:
                    break
            self._wake.wait(SYNC_S)
            self._wake.clear()
        if self._next is not None:
            self._next.discard()
            self._next = None

    def _make_next(self) -> None:
        if self._next is not None or self._file is None:
            return
        if self.use.total_bytes + self._size_bytes > self._max_bytes:
            self.use = use_of(self.folder)
        if self.use.total_bytes + self._size_bytes > self._max_bytes:
            raise OSError(errno.ENOSPC, f"the spool has {self.use.total_bytes} bytes; ledger_spool_bytes is the limit")
        self._next = self._new_file()
        self.use.total_bytes += self._size_bytes

    def _seal_retired(self) -> None:
        while self._retired:
            self._retired[0].seal()
            self._retired.popleft()

    def _report_error(self, error: OSError) -> None:
        self._report(f"{error.strerror}: {error.filename or self.folder}")

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.error("the ledger has no room for further records", problem=problem)
        self.problem = problem


def use_of(folder: Path) -> SpoolUse:
    """Return what the files of a spool occupy."""
    total_bytes, sealed, oldest = 0, 0, None
    for path in folder.iterdir():
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        total_bytes += found.st_blocks * 512
        if path.suffix in (SEALED_SUFFIX, UNSETTLED_SUFFIX):
            sealed += 1
            oldest = found.st_mtime if oldest is None else min(oldest, found.st_mtime)
    try:
        last_put = read_plain_file(folder.with_suffix(LAST_PUT_SUFFIX), _MAX_NAME_BYTES).content.decode()
    except (OSError, ValueError):
        last_put = ""
    return SpoolUse(total_bytes, sealed, oldest, last_put)
