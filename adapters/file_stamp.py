"""Detects changes of files, so that changed files can be read again."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int]


def file_stamp(file: Path) -> Stamp | None:
    """Return inode, modification time (ns) and size (bytes) of a file; None if the file cannot be examined.

    The result changes when the file is replaced or written.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
