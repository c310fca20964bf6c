"""A folder lists all objects or is unavailable: a part of them would be taken for all. A new object has one writer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from adapters.object_store.folder_store import FolderStore
from adapters.object_store.object_store import ObjectMissing, StoreUnavailable


def test_all_files_below_a_folder_are_listed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("day=1/a.parquet", b"12")
    store.put("day=2/b.parquet", b"123")
    assert [each[:2] for each in sorted(store.list(""))] == [("day=1/a.parquet", 2), ("day=2/b.parquet", 3)]
    assert [each[:2] for each in store.list("day=2")] == [("day=2/b.parquet", 3)]
    assert list(store.list("day=3")) == []


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path)
    store.put("day=1/a.parquet", b"12")
    store.put("day=2/b.parquet", b"123")
    broken = str(tmp_path / "day=2")
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if os.fspath(path) == broken:
            raise OSError(errno.EIO, "Input/output error", broken)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    for folder in ("", "day=2"):
        with pytest.raises(StoreUnavailable, match="day=2: Input/output error"):
            store.list(folder)


def test_a_file_that_cannot_be_examined_is_an_error(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("day=1/a.parquet", b"12")
    (tmp_path / "day=1/gone.parquet").symlink_to("nowhere")
    assert [each[:2] for each in store.list("")] == [("day=1/a.parquet", 2)]
    (tmp_path / "day=1/loop.parquet").symlink_to("loop.parquet")
    with pytest.raises(StoreUnavailable, match=r"loop\.parquet: Too many levels"):
        store.list("")


def test_a_root_that_cannot_be_examined_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is not a folder"):
        FolderStore(tmp_path / "nowhere").list("")
    with pytest.raises(StoreUnavailable, match="File name too long"):
        FolderStore(tmp_path / ("n" * 300)).list("")


def test_of_several_writers_of_a_new_object_one_succeeds(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        written = list(threads.map(lambda number: store.put_new("claims/1", b"%d" % number), range(8)))
    assert written.count(True) == 1
    assert store.read("claims/1") == b"%d" % written.index(True)
    assert [each[:2] for each in store.list("")] == [("claims/1", 1)]


@pytest.mark.parametrize("instead", ["nothing", "an empty folder", "another store"])
def test_a_folder_that_is_away_has_no_missing_object_and_receives_none(tmp_path: Path, instead: str) -> None:
    root, away = tmp_path / "store", tmp_path / "away"
    writer, reader = FolderStore(root), FolderStore(root)
    writer.put("a/b", b"1")
    assert [each.path for each in reader.list("")] == ["a/b"]
    root.rename(away)
    if instead != "nothing":
        root.mkdir()
    if instead == "another store":
        FolderStore(root).put("c", b"2")
    before = sorted(tmp_path.rglob("*"))
    operations: list[Callable[[FolderStore], object]] = [
        lambda store: store.put("a/b", b"3"),
        lambda store: store.put_new("d/e", b"3"),
        lambda store: store.read("a/b"),
        lambda store: store.list(""),
        lambda store: store.list("a"),
        lambda store: store.delete("a/b"),
    ]
    for operation in operations:
        for store in (writer, reader):
            with pytest.raises(StoreUnavailable) as raised:
                operation(store)
            assert not isinstance(raised.value, ObjectMissing)
    assert sorted(tmp_path.rglob("*")) == before
    if instead != "nothing":
        root.rename(tmp_path / "other")
    away.rename(root)
    assert reader.read("a/b") == b"1"
    assert writer.put_new("d/e", b"3")
    assert [each.path for each in FolderStore(root).list("")] == ["a/b", "d/e"]


def test_a_missing_object_differs_from_a_store_that_cannot_be_read(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    with pytest.raises(ObjectMissing):
        store.read("nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreUnavailable) as raised:
        store.read("folder")
    assert not isinstance(raised.value, ObjectMissing)
