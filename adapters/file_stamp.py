"""Whether a file is another than before: asked about every file that is read again when it changes."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int]


def file_stamp(file: Path) -> Stamp | None:
    """What changes when a file does: a rename brings another inode, a write another time or size; None of no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
