"""The operations on a store of segments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class StoreUnavailable(Exception):
    """The store cannot be reached or refused an operation. The message has no credentials."""


class StoredSegment(NamedTuple):
    """An object of the store."""

    path: str
    """Path within the store, as of `SegmentName`."""
    size_bytes: int


class SegmentStore(Protocol):
    """A store. All operations block, and raise StoreUnavailable."""

    def put(self, path: str, content: bytes) -> None:
        """Write an object, or replace it; returns when it is durable."""

    def read(self, path: str) -> bytes:
        """Return the content of an object."""

    def list(self, folder: str) -> Iterable[StoredSegment]:
        """Return all objects below a folder; none if it does not exist."""

    def delete(self, path: str) -> None:
        """Remove an object; nothing if it does not exist."""
