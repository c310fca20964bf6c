"""An object store in a folder, such as of a network file system."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from adapters.object_store.object_store import ObjectMissing, SignedMethod, StoredObject, StoreUnavailable

_TEMPORARY = ".new"

CREATIONS: Final = 10
"""Attempts to create a file in a folder that deletions of other files remove."""


class FolderStore:
    """Objects as files. Readers see a whole object or none."""

    def __init__(self, root: Path) -> None:
        """Use the folder `root`, which the first `put` creates."""
        self.root = root

    def put(self, path: str, content: bytes) -> None:
        """Write a file beside the name, sync it, and rename it."""
        self._write(path, content, replace=True)

    def put_new(self, path: str, content: bytes) -> bool:
        """Write a file beside the name, sync it, and link it, which fails if the name exists."""
        return self._write(path, content, replace=False)

    def _write(self, path: str, content: bytes, *, replace: bool) -> bool:
        target = self.root / path
        temporary = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}{_TEMPORARY}")
        try:
            try:
                with _created(temporary) as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                if replace:
                    temporary.replace(target)
                else:
                    target.hardlink_to(temporary)
            finally:
                temporary.unlink(missing_ok=True)
            descriptor = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except FileExistsError as error:
            if replace:
                raise _unavailable(error, target) from None
            return False
        except OSError as error:
            raise _unavailable(error, target) from None
        return True

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return self.read_range(path, 0, -1)

    def read_range(self, path: str, start: int, size_bytes: int) -> bytes:
        """Return a part of a file; all that follows with a negative size."""
        try:
            with (self.root / path).open("rb") as file:
                file.seek(start)
                return file.read(size_bytes)
        except FileNotFoundError:
            raise ObjectMissing(f"{self.root / path}: no such file") from None
        except OSError as error:
            raise _unavailable(error, self.root / path) from None

    def list(self, folder: str) -> Iterable[StoredObject]:
        """Return all files below a folder."""
        start = self.root / folder
        found = []
        try:
            if not self.root.is_dir():
                raise StoreUnavailable(f"{self.root} is not a folder")
            # Texts: a `Path` for each file more than doubles the time of a long list.
            for base, _, names in os.walk(start, onerror=_raise_unless_gone):
                within = "" if base == str(self.root) else f"{Path(base).relative_to(self.root)}/"
                for name in names:
                    # A temporary file, or what a file server leaves of a deleted file that is read (.nfs...).
                    if name.startswith("."):
                        continue
                    try:
                        status = os.stat(f"{base}/{name}")
                    except FileNotFoundError:
                        continue
                    found.append(StoredObject(within + name, status.st_size, status.st_mtime))
        except OSError as error:
            raise _unavailable(error, start) from None
        return sorted(found)

    def sign(self, paths: Sequence[str], valid_s: float, method: SignedMethod = "GET") -> Sequence[str]:
        """Raise StoreUnavailable: a folder has no URLs."""
        raise StoreUnavailable("a store in a folder signs no URLs")

    def delete(self, path: str) -> None:
        """Remove a file, and the folders that are empty without it."""
        try:
            (self.root / path).unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(error, self.root / path) from None
        with suppress(OSError):  # not empty
            for folder in Path(path).parents[:-1]:
                (self.root / folder).rmdir()


def _created(path: Path) -> BinaryIO:
    """Create a file and its folder, which a deletion may remove before the folder has a file."""
    for _ in range(CREATIONS):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return path.open("wb")
    raise FileNotFoundError(errno.ENOENT, "the folder is deleted again and again", str(path))


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _unavailable(error: OSError, path: Path) -> StoreUnavailable:
    return StoreUnavailable(f"{error.filename or path}: {error.strerror}")
