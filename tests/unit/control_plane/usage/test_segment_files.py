"""Segments of buckets are cached where no other user of the host can put or replace them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.object_store.folder_store import FolderStore
from adapters.object_store.object_store import ObjectStore
from control_plane.usage import usage_query
from control_plane.usage.segment_files import UnusableCache, list_segments, local_files
from control_plane.usage.usage_request import StoreToRead, UsageRequest
from tests.unit.control_plane.usage.test_usage_query import DAY, put, record


class Bucket:
    """A store that is no folder to its readers."""

    url = "s3://segments"

    def __init__(self, folder: Path) -> None:
        files = FolderStore(folder)
        self.put, self.read, self.list, self.delete = files.put, files.read, files.list, files.delete


@pytest.fixture
def bucket(tmp_path: Path) -> ObjectStore:
    store: Any = Bucket(tmp_path / "bucket")
    put(store, 1, record())
    return store  # type: ignore[no-any-return]


def cached(bucket: ObjectStore, cache: Path) -> list[Path]:
    return local_files(bucket, list_segments(bucket, DAY, DAY), cache)


def test_the_folder_of_the_cache_is_of_this_user_alone(bucket: ObjectStore, tmp_path: Path) -> None:
    cache = tmp_path / "some" / "cache"
    (path,) = cached(bucket, cache)
    assert cache.stat().st_mode & 0o777 == 0o700
    # A cached segment is not read again.
    path.write_bytes(b"cached")
    assert cached(bucket, cache) == [path]
    assert path.read_bytes() == b"cached"


def a_link(cache: Path) -> None:
    (cache.parent / "elsewhere").mkdir()
    cache.symlink_to("elsewhere")


def a_file(cache: Path) -> None:
    cache.write_text("")


def writable_by_the_group(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o770)


def writable_by_others(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o1707)


@pytest.mark.parametrize("make", [a_link, a_file, writable_by_the_group, writable_by_others])
def test_a_folder_that_others_may_have_made_is_refused(
    bucket: ObjectStore, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "cache")
    with pytest.raises(UnusableCache, match="PENSTOCK_USAGE_CACHE"):
        cached(bucket, tmp_path / "cache")


def test_a_folder_of_another_user_is_refused(
    bucket: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir(0o700)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(UnusableCache, match=f"belongs to the user {uid}.*PENSTOCK_USAGE_CACHE"):
        cached(bucket, tmp_path / "cache")


def test_a_question_names_the_store_that_the_cache_cannot_serve(
    bucket: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writable_by_others(tmp_path / "cache")
    monkeypatch.setattr(usage_query, "open_store", lambda url: bucket)
    found = usage_query.answer(UsageRequest((StoreToRead("s3", "s3://segments"),), DAY, DAY), tmp_path / "cache")
    (missing,) = found.missing
    assert missing.startswith("the store s3 could not be read: ")
    assert "PENSTOCK_USAGE_CACHE" in missing
