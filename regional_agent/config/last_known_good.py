"""Stores the last accepted value on disk, so that an agent can restart and serve without the store.

A file contains a header line (version, kind, SHA-256) and the value. Files are replaced atomically: a temporary file is
written, synced and renamed, and the directory is synced (fsync(2), rename(2)). After a crash the file holds either the
old or the new value; a file whose digest does not match is ignored.
"""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import structlog

from adapters.files.plain_file import read_plain_file

VERSION = 1

MAX_FILE_BYTES = 8 * 1024 * 1024
"""Maximum size of a valid file: a policy and a plan have at most 1 MiB each in the store."""

T = TypeVar("T", bound=msgspec.Struct)

log = structlog.get_logger()


class StateFile(Generic[T]):
    """One file that holds one value of one type."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        """Use the file `path`; neither reads nor writes it."""
        self.path = path
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._unwritten: T | None = None
        self._writing = False

    def load(self) -> T | None:
        """Return the saved value; None if the file is missing or invalid. An invalid file is logged and kept."""
        try:
            content = read_plain_file(self.path, MAX_FILE_BYTES).content
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("last known good not read", file=str(self.path), error=error.strerror)
            return None
        try:
            return self._parse(content)
        except ValueError as error:
            log.warning("last known good ignored", file=str(self.path), error=str(error))
            return None

    async def save(self, value: T) -> None:
        """Write the value in a thread. If several saves overlap, the last value is on disk at the end.

        A failed write is logged and does not raise.
        """
        self._unwritten = value
        if self._writing:
            return
        self._writing = True
        try:
            while (newest := self._unwritten) is not None:
                self._unwritten = None
                try:
                    await asyncio.to_thread(self.write, newest)
                except OSError as error:
                    log.warning("last known good not written", file=str(self.path), error=error.strerror)
        finally:
            self._writing = False

    def write(self, value: T) -> None:
        """Replace the file, blocking until it is on disk; raises OSError."""
        body = msgspec.json.encode(value)
        header = f"penstock {VERSION} {self._kind.__name__} {sha256(body).hexdigest()}\n"
        temporary = self.path.with_name(self.path.name + ".new")
        # A new file, because opening what is there may block, such as a FIFO.
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            file.write(header.encode() + body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _parse(self, content: bytes) -> T:
        header, newline, body = content.partition(b"\n")
        words = header.decode("ascii", "replace").split(" ")
        if not newline or len(words) != 4 or words[0] != "penstock":
            raise ValueError("not a file that Penstock wrote")
        if words[1] != str(VERSION):
            raise ValueError(f"written in version {words[1]}, this agent reads version {VERSION}")
        if words[2] != self._kind.__name__:
            raise ValueError(f"holds a {words[2]}, not a {self._kind.__name__}")
        if words[3] != sha256(body).hexdigest():
            raise ValueError("damaged: the digest does not match")
        return self._decoder.decode(body)
