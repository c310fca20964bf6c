"""Reserves the output directory of a run, and checks the free disk space."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapters.servers.errors import ServerError

NEEDED_BYTES = 150_000_000
"""Disk space (bytes) that a fleet needs. Most of it is the write-ahead log of etcd, which etcd preallocates."""


@contextmanager
def lock_output_dir(out: Path) -> Iterator[None]:
    """Create and lock the output directory of a run. A concurrent run would delete the logs of this run.

    Raises:
        ServerError: the directory cannot be created, or another run has locked it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ServerError(f"{out}: {error.strerror}; name a folder that can be written with --out") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ServerError(
            f"{out}: another demo runs in this directory; wait until it ends, or name another directory with --out"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def check_space(directory: Path, needed_bytes: int) -> None:
    """Check the free space before etcd fails with an obscure error.

    Raises:
        ServerError: fewer than `needed_bytes` are free.
    """
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise ServerError(
            f"{directory}: {free_bytes // 1_000_000} MB are free, but the fleet needs "
            f"{needed_bytes // 1_000_000} MB; free disk space, or set TMPDIR to a directory with enough space"
        )
