"""What an agent accepted last, kept on its disk, so that a restart with everything above it dead still serves.

A file is a line of header (version, kind, SHA-256) and the value. It is replaced whole: written beside, synced,
renamed, and the directory synced (fsync(2), rename(2)), so a crash at any moment leaves either the old one or the new
one; anything else on disk is noticed by the digest and ignored.
"""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import structlog

VERSION = 1

MAX_FILE_BYTES = 8 * 1024 * 1024
"""A policy and a plan have at most a mebibyte each in the store; more than this is not ours."""

T = TypeVar("T", bound=msgspec.Struct)

log = structlog.get_logger()


class LastKnownGood(Generic[T]):
    """One remembered value of one kind in one file."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        """The file is `path`; nothing is read or written yet."""
        self.path = path
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._waiting: T | None = None
        self._writing = False

    def load(self) -> T | None:
        """What was saved last, or None where nothing usable is there; a damaged file is logged and left alone."""
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
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
        """Write the value, off the event loop. Of several saves that overlap, the last one is on disk at the end.

        A disk that cannot be written is logged: what is in memory goes on serving.
        """
        self._waiting = value
        if self._writing:
            return
        self._writing = True
        try:
            while (newest := self._waiting) is not None:
                self._waiting = None
                await asyncio.to_thread(self.write, newest)
        except OSError as error:
            log.warning("last known good not written", file=str(self.path), error=error.strerror)
        finally:
            self._writing = False

    def write(self, value: T) -> None:
        """Replace the file, blocking until it is on disk; raises OSError."""
        body = msgspec.json.encode(value)
        header = f"penstock {VERSION} {self._kind.__name__} {sha256(body).hexdigest()}\n"
        beside = self.path.with_name(self.path.name + ".new")
        with beside.open("wb") as file:
            file.write(header.encode() + body)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _parse(self, content: bytes) -> T:
        header, newline, body = content.partition(b"\n")
        words = header.decode("ascii", "replace").split(" ")
        if len(content) > MAX_FILE_BYTES or not newline or len(words) != 4 or words[0] != "penstock":
            raise ValueError("not a file of ours")
        if words[1] != str(VERSION):
            raise ValueError(f"written in version {words[1]}, this agent reads version {VERSION}")
        if words[2] != self._kind.__name__:
            raise ValueError(f"holds a {words[2]}, not a {self._kind.__name__}")
        if words[3] != sha256(body).hexdigest():
            raise ValueError("damaged: the digest does not match")
        return self._decoder.decode(body)
