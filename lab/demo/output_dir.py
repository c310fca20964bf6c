"""Room for what a run writes: a folder that is its alone, and space on the disk."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.servers.errors import ServerError

NEEDED_BYTES = 150_000_000
"""What a planet writes while it runs; nearly all of it is etcd's log, which is made in full at its start."""


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Make the folder for what a run writes, and keep other runs out of it: each clears away older logs.

    Raises:
        ServerError: it cannot be made, or another run is in it.
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
            f"{out}: another demo runs and writes there; wait for its end, or name another folder with --out"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def check_space(directory: Path, needed_bytes: int) -> None:
    """Find out at once what etcd would say with a page of its insides.

    Raises:
        ServerError: less is free.
    """
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise ServerError(
            f"{directory}: {free_bytes // 1_000_000} MB are free, and a planet takes "
            f"{needed_bytes // 1_000_000} MB there; make room, or set TMPDIR to a folder that has it"
        )
