"""One file of the spool, mapped into memory. Its blocks are allocated when it is created, so that no write can fail."""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from penstock.ledger.spool_format import (
    CHECKPOINT_PLACES,
    HEADER_BYTES,
    LENGTH_BYTES,
    MAX_RECORD_BYTES,
    Opening,
    checkpoint,
    header,
    with_length,
)

OPEN_SUFFIX: Final = ".open"
"""Suffix of files that an agent writes, or wrote when it died; the agent holds a lock (flock(2)) on them."""

SEALED_SUFFIX: Final = ".sealed"
"""Suffix of complete files."""

DAMAGED_SUFFIX: Final = ".damaged"
"""Suffix of files that cannot be read, which stay."""

HELD_SUFFIX: Final = ".held"
"""Suffix of files of records that this agent adds to its current file once the job store has their result."""

UNSETTLED_SUFFIX: Final = ".unsettled"
"""Suffix of such files of an agent that has died, or may not know whether its result counts: the job store decides."""

LAST_PUT_SUFFIX: Final = ".put"
"""Suffix of the file beside the folder of the spool with the name of the segment that was put last."""

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
"""See random(4)."""


def boot_id() -> bytes:
    """Return an identifier of the boot of this host; empty if the host has none, so that checkpoints are used."""
    try:
        return bytes.fromhex(BOOT_ID_FILE.read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return b""


class OpenSpoolFile:
    """A file that this process writes. Created in a thread, and written by the event loop after that."""

    def __init__(self, folder: Path, opening: Opening, size_bytes: int, boot: bytes) -> None:
        """Create the file and allocate all of it. It has no record before `begin`.

        Args:
            opening: first record of the file.
            boot: of `boot_id`.

        Raises:
            OSError: the file cannot be created or allocated.
        """
        self.path = folder / f"{opening.epoch}-{opening.number}{OPEN_SUFFIX}"
        self.size_bytes = size_bytes
        self._opening = msgspec.msgpack.encode(opening)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, size_bytes)
            self.map = mmap.mmap(descriptor, size_bytes)
        except BaseException:
            self.path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        self.map[:HEADER_BYTES] = header(boot)
        self.lengths = memoryview(self.map).cast("H")
        """The file as numbers of two bytes: assignment to one costs half of that to a slice, and is not divided."""
        self._descriptor = descriptor
        self.end = HEADER_BYTES + len(with_length(self._opening))
        """Position of the end of the last record."""
        self._checked_end = HEADER_BYTES
        self._crc = 0
        self._turn = 0

    def append(self, encoded: bytes) -> bool:
        """Append a record; False if there is no room. Once the length is written, the record is valid."""
        size = len(encoded)
        begin = self.end + LENGTH_BYTES
        end = begin + size
        if end >= self.size_bytes or size > MAX_RECORD_BYTES:
            return False
        self.map[begin:end] = encoded
        self.lengths[self.end >> 1] = size
        self.end = end + (size & 1)
        return True

    def begin(self) -> None:
        """Write the first record. What was appended before, the starts of open requests, is valid from now on."""
        size = len(self._opening)
        self.map[HEADER_BYTES + LENGTH_BYTES : HEADER_BYTES + LENGTH_BYTES + size] = self._opening
        self.lengths[HEADER_BYTES >> 1] = size

    def sync(self) -> None:
        """Write a checkpoint, and wait until the disk has it and all records before it. Raises OSError."""
        end = self.end
        if end == self._checked_end:
            return
        with memoryview(self.map)[self._checked_end : end] as added:
            self._crc = crc32(added, self._crc)
        self._checked_end = end
        encoded, place = checkpoint(end, self._crc), CHECKPOINT_PLACES[self._turn]
        self.map[place : place + len(encoded)] = encoded
        self._turn = 1 - self._turn
        os.fdatasync(self._descriptor)

    def seal(self) -> None:
        """Shorten the file to its records and rename it; it is not written again. Raises OSError."""
        self.sync()
        self._unmap()
        os.ftruncate(self._descriptor, self.end)
        self.path.rename(self.path.with_suffix(SEALED_SUFFIX))
        self.close()

    def discard(self) -> None:
        """Remove the file, which has no record."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file as it is, and release its lock. Called once."""
        self._unmap()
        os.close(self._descriptor)

    def _unmap(self) -> None:
        if not self.map.closed:
            self.lengths.release()
            self.map.close()
