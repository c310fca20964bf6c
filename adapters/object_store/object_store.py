"""The operations on an object store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

SignedMethod = Literal["GET", "PUT"]


class StoreUnavailable(Exception):
    """The store cannot be reached or refused an operation. The message has no credentials."""


class ObjectMissing(StoreUnavailable):
    """The store has no object with the path."""


class StoredObject(NamedTuple):
    """An object of the store."""

    path: str
    """Path within the store."""
    size_bytes: int
    written_at: float = 0.0
    """Unix time (s) at which it was written, by the clock of the store: of the file server for a folder."""


class ObjectStore(Protocol):
    """A store. All operations block, and raise StoreUnavailable."""

    def put(self, path: str, content: bytes) -> None:
        """Write an object, or replace it; returns when it is durable."""

    def put_new(self, path: str, content: bytes) -> bool:
        """Write an object unless one has the path; returns whether it was written. Of several writers, one succeeds."""

    def read(self, path: str) -> bytes:
        """Return the content of an object; raises ObjectMissing if there is none."""

    def read_range(self, path: str, start: int, size_bytes: int) -> bytes:
        """Return a part of an object, less at its end; raises ObjectMissing if there is none."""

    def sign(self, paths: Sequence[str], valid_s: float, method: SignedMethod = "GET") -> Sequence[str]:
        """Return a URL for each path that reads its object, or writes it, without credentials, for a time (s)."""

    def list(self, folder: str) -> Iterable[StoredObject]:
        """Return all objects below a folder, by path; none if it does not exist."""

    def names(self, folder: str, after: str) -> Iterable[str]:
        """Return the names of the objects directly in a folder that come after a name, in their order. A bucket reads
        them as they are used; a folder returns them at once, as a list."""

    def delete(self, path: str) -> None:
        """Remove an object; nothing if it does not exist."""
