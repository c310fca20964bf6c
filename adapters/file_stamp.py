"""Detects changes of files that are read again when they change."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int]


def file_stamp(file: Path) -> Stamp | None:
    """Inode, modification time and size of a file, which change when it is replaced or written; None without a file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
