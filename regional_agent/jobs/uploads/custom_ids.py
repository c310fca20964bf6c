"""Finds the first `custom_id` that a file contains twice, in bounded memory."""

from __future__ import annotations

import struct
from contextlib import ExitStack
from hashlib import blake2b
from math import ceil
from tempfile import SpooledTemporaryFile
from typing import Final

from adapters.object_store.object_store import StoreUnavailable

PARTITIONS: Final = 64
"""A file of digests is divided by digest."""

MAX_KNOWN: Final = 50_000
"""About how many digests are in memory: a larger partition is read several times, for a part of its digests each."""

MEMORY_BYTES: Final = 64 * 1024
"""Size (bytes) of a partition from which it is kept in a temporary file."""

_DIGEST_BYTES: Final = 16
_ENTRY: Final = struct.Struct(f"<{_DIGEST_BYTES}sQ")
_READ_BYTES: Final = 2730 * _ENTRY.size


class CustomIds:
    """The identifiers of one file, as digests of 128 bits."""

    def __init__(self) -> None:
        """Start without an identifier."""
        self._files = ExitStack()
        self._partitions = [
            self._files.enter_context(SpooledTemporaryFile(MEMORY_BYTES))  # noqa: SIM115 (closed by `close`)
            for _ in range(PARTITIONS)
        ]

    def add(self, custom_id: str, line: int) -> None:
        """Add the identifier of a line. Raises StoreUnavailable if the host has no space for temporary files."""
        digest = blake2b(custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
        try:
            self._partitions[digest[0] % PARTITIONS].write(_ENTRY.pack(digest, line))
        except OSError as error:
            raise StoreUnavailable(f"identifiers of an input file cannot be kept: {error}") from None

    def first_repeated(self) -> tuple[int, int] | None:
        """Return the first line whose identifier an earlier line has, and that line; None if there is none."""
        found: tuple[int, int] | None = None
        for partition in self._partitions:
            passes = ceil(partition.tell() / _ENTRY.size / MAX_KNOWN)
            for number in range(passes):
                known: dict[bytes, int] = {}
                partition.seek(0)
                while entries := partition.read(_READ_BYTES):
                    for digest, line in _ENTRY.iter_unpack(entries):
                        if digest[1] % passes == number:
                            first = known.setdefault(digest, line)
                            if first != line and (found is None or line < found[0]):
                                found = line, first
        return found

    def close(self) -> None:
        """Remove the temporary files."""
        self._files.close()
