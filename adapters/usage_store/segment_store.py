"""The operations on a store of segments, and the choice of a store by its URL."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit


class StoreUnavailable(Exception):
    """The store cannot be reached or refused an operation. The message has no credentials."""


class MissingPackages(Exception):
    """The packages that the store needs are not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is not installed; install penstock[usage]")


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


def open_store(url: str) -> SegmentStore:
    """Return the store with a URL of `UsageStore.url`; does not connect.

    Raises:
        MissingPackages: the store needs packages that are not installed.
        StoreUnavailable: the configuration in files and environment is unusable.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        from adapters.usage_store.folder_store import FolderStore

        return FolderStore(Path(unquote(parts.path)))
    try:
        from adapters.usage_store.bucket_store import BucketStore
    except ImportError as error:
        raise MissingPackages(error.name or "obstore") from None
    return BucketStore(url)
