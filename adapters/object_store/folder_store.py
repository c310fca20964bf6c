"""An object store in a folder, such as of a network file system."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from adapters.object_store.object_store import ObjectMissing, SignedMethod, StoredObject, StoreUnavailable

_TEMPORARY = ".new"

_IDENTITY: Final = ".penstock-store"
"""File that names the store. It is not the same, or absent, where the folder was moved, unmounted or replaced."""

CREATIONS: Final = 10
"""Attempts to create a file in a folder that deletions of other files remove."""


class FolderStore:
    """Objects as files. Readers see a whole object or none.

    A folder that is away, such as an unmounted one, has no object either: nothing in it is missing or written.
    """

    def __init__(self, root: Path) -> None:
        """Use the folder `root`, which the first `put` creates."""
        self.root = root
        self._identity = b""
        """The name of the store; empty until it is known."""

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
            self._check(is_written=True)
            try:
                with self._created(temporary) as file:
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
            self._check()
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
            self._check()
        except OSError as error:
            raise _unavailable(error, start) from None
        return sorted(found)

    def names(self, folder: str, after: str) -> Sequence[str]:
        """Return the names of the files in a folder that come after a name."""
        try:
            found = os.listdir(self.root / folder)
        except FileNotFoundError:
            found = []
        except OSError as error:
            raise _unavailable(error, self.root / folder) from None
        self._check()
        return sorted(name for name in found if name > after and not name.startswith("."))

    def sign(self, paths: Sequence[str], valid_s: float, method: SignedMethod = "GET") -> Sequence[str]:
        """Raise StoreUnavailable: a folder has no URLs."""
        raise StoreUnavailable("a store in a folder signs no URLs")

    def delete(self, path: str) -> None:
        """Remove a file, and the folders that are empty without it."""
        try:
            (self.root / path).unlink()
        except FileNotFoundError:
            self._check()
        except OSError as error:
            raise _unavailable(error, self.root / path) from None
        with suppress(OSError):  # not empty
            for folder in Path(path).parents[:-1]:
                (self.root / folder).rmdir()

    def _created(self, path: Path) -> BinaryIO:
        """Create a file and its folders, which a deletion may remove before they have a file."""
        for _ in range(CREATIONS):
            with suppress(FileNotFoundError):
                return path.open("wb")
            # Not `parents=True`, which would create the root again.
            for folder in reversed(path.relative_to(self.root).parents[:-1]):
                with suppress(FileNotFoundError):
                    (self.root / folder).mkdir(exist_ok=True)
        raise FileNotFoundError(errno.ENOENT, "the folder is deleted again and again", str(path))

    def _check(self, *, is_written: bool = False) -> None:
        """Raise StoreUnavailable if the folder is another one than at first; name it if it is new and `is_written`."""
        file = self.root / _IDENTITY
        try:
            if is_written and not self._identity:
                self.root.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError), file.open("xb") as new:
                    new.write(uuid4().hex.encode())
            found = file.read_bytes()
        except FileNotFoundError:
            found = b""
        except OSError as error:
            raise _unavailable(error, file) from None
        if self._identity and found != self._identity:
            raise StoreUnavailable(f"{self.root} is not the folder that the store was in before; is it mounted?")
        self._identity = found


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _unavailable(error: OSError, path: Path) -> StoreUnavailable:
    return StoreUnavailable(f"{error.filename or path}: {error.strerror}")
