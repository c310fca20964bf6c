"""The segments of a store as local files: those of a folder as they are, those of a bucket in a bounded cache."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from adapters.usage_store.folder_store import FolderStore
from adapters.usage_store.segment_store import SegmentStore
from penstock.ledger.segment_names import SegmentName, parse_segment_name

MAX_CACHE_BYTES: Final = 8 << 30
"""Maximum size of the cached segments of buckets; one day of 100 million requests a month has about 150 MB."""

MAX_DAYS: Final = 1_000
"""Maximum number of days of a question."""


class CacheTooSmall(Exception):
    """The segments of a question do not fit into the cache."""


class Listed(NamedTuple):
    """A segment of a store."""

    name: SegmentName
    size_bytes: int


def days_between(first: date, last: date) -> Iterator[date]:
    """Return all days of a range, both ends included."""
    for number in range((last - first).days + 1):
        yield first + timedelta(days=number)


def list_segments(store: SegmentStore, first: date, last: date) -> list[Listed]:
    """Return the segments of a range of days. Objects with other names are ignored.

    Raises:
        StoreUnavailable: the store cannot be listed.
    """
    found = []
    for day in days_between(first, last):
        for each in store.list(f"day={day.isoformat()}"):
            name = parse_segment_name(each.path)
            if name is not None:
                found.append(Listed(name, each.size_bytes))
    return found


def local_files(store: SegmentStore, segments: Iterable[Listed], cache: Path) -> list[Path]:
    """Return a local file for each segment, in the order of `segments`.

    Args:
        cache: folder for the segments of buckets; shared by all stores.

    Raises:
        CacheTooSmall: the segments are larger than the cache.
        StoreUnavailable: a segment cannot be read.
    """
    wanted = list(segments)
    if isinstance(store, FolderStore):
        return [store.root / str(each.name) for each in wanted]
    size_bytes = sum(each.size_bytes for each in wanted)
    if size_bytes > MAX_CACHE_BYTES:
        raise CacheTooSmall(f"the segments have {size_bytes} bytes, the cache {MAX_CACHE_BYTES}; ask for fewer days")
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = {}
    for each in wanted:
        # The size is part of the name: a segment never changes otherwise.
        digest = sha256(f"{id_of(store)} {each.name} {each.size_bytes}".encode()).hexdigest()
        paths[cache / f"{digest[:40]}.parquet"] = each
    _make_room(cache, size_bytes, keep=paths.keys())
    for path, each in paths.items():
        if path.exists():
            os.utime(path)
            continue
        temporary = path.with_suffix(f".{os.getpid()}.new")
        temporary.write_bytes(store.read(str(each.name)))
        temporary.replace(path)
    return list(paths)


def id_of(store: SegmentStore) -> str:
    """Return what distinguishes a store from others in the cache."""
    return getattr(store, "url", "")


def _make_room(cache: Path, size_bytes: int, keep: Iterable[Path]) -> None:
    """Remove the segments that were not used for the longest time until `size_bytes` fit."""
    kept = set(keep)
    files = sorted((path for path in cache.iterdir() if path not in kept), key=lambda path: path.stat().st_mtime)
    used = sum(path.stat().st_size for path in files)
    for path in files:
        if used + size_bytes <= MAX_CACHE_BYTES:
            return
        used -= path.stat().st_size
        path.unlink(missing_ok=True)
