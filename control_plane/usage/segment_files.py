"""The segments of a store as local files: those of a folder as they are, those of a bucket in a bounded cache."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from adapters.object_store.folder_store import FolderStore
from adapters.object_store.object_store import ObjectStore
from penstock.ledger.segment_names import SegmentName, parse_segment_name

MAX_CACHE_BYTES: Final = 8 << 30
"""Maximum size of the cached segments of buckets; one day of 100 million requests a month has about 150 MB."""

CACHE_VARIABLE: Final = "PENSTOCK_USAGE_CACHE"
"""The variable of the environment that has the folder of the cache."""

MAX_DAYS: Final = 1_000
"""Maximum number of days of a question."""


class CacheTooSmall(Exception):
    """The segments of a question do not fit into the cache."""


class UnusableCache(Exception):
    """The folder of the cache cannot be created, or others could put segments into it."""


class Listed(NamedTuple):
    """A segment of a store."""

    name: SegmentName
    size_bytes: int


def days_between(first: date, last: date) -> Iterator[date]:
    """Return all days of a range, both ends included."""
    for number in range((last - first).days + 1):
        yield first + timedelta(days=number)


def list_segments(store: ObjectStore, first: date, last: date) -> list[Listed]:
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


def local_files(store: ObjectStore, segments: Iterable[Listed], cache: Path) -> list[Path]:
    """Return a local file for each segment, in the order of `segments`.

    Args:
        cache: folder for the segments of buckets; shared by all stores.

    Raises:
        CacheTooSmall: the segments are larger than the cache.
        UnusableCache: `cache` is no folder of this user alone.
        StoreUnavailable: a segment cannot be read.
    """
    wanted = list(segments)
    if isinstance(store, FolderStore):
        return [store.root / str(each.name) for each in wanted]
    size_bytes = sum(each.size_bytes for each in wanted)
    if size_bytes > MAX_CACHE_BYTES:
        raise CacheTooSmall(f"the segments have {size_bytes} bytes, the cache {MAX_CACHE_BYTES}; ask for fewer days")
    _make_cache(cache)
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


def _make_cache(cache: Path) -> None:
    """Create the folder; one that exists must be of this user alone.

    Other users can create a folder by the expected name in the temporary folder, and would answer questions with it.

    Raises:
        UnusableCache: it is not.
    """
    remedy = f"set {CACHE_VARIABLE} to a folder that belongs to this user, and that no one else can write"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = cache.lstat()
    except OSError as error:
        raise UnusableCache(f"the cache {cache} cannot be created: {error.strerror}; {remedy}") from None
    if not stat.S_ISDIR(found.st_mode):
        problem = "is not a folder"
    elif found.st_uid != os.getuid():
        problem = f"belongs to the user {found.st_uid}"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "can be written by other users"
    else:
        return
    raise UnusableCache(f"the cache {cache} {problem}; {remedy}")


def id_of(store: ObjectStore) -> str:
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
