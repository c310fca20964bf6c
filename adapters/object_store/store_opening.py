"""Opens the object store at a URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from adapters.object_store.folder_store import FolderStore
from adapters.object_store.object_store import ObjectStore


class MissingPackages(Exception):
    """The packages that the store needs are not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is not installed; install penstock[usage] or penstock[jobs]")


def open_store(url: str) -> ObjectStore:
    """Return the store with a URL, as of `UsageStore.url` and `JobStore.url`; does not connect.

    Raises:
        MissingPackages: the store needs packages that are not installed.
        StoreUnavailable: the configuration in files and environment is unusable.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return FolderStore(Path(unquote(parts.path)))
    try:
        # Imported late, because obstore is an extra.
        from adapters.object_store.bucket_store import BucketStore
    except ImportError as error:
        raise MissingPackages(error.name or "obstore") from None
    return BucketStore(url)
