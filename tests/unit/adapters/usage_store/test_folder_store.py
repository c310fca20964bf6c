"""A folder lists all segments or is unavailable: a part of them would be taken for all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from adapters.usage_store.folder_store import FolderStore
from adapters.usage_store.segment_store import StoredSegment, StoreUnavailable


def test_all_files_below_a_folder_are_listed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("day=1/a.parquet", b"12")
    store.put("day=2/b.parquet", b"123")
    assert sorted(store.list("")) == [StoredSegment("day=1/a.parquet", 2), StoredSegment("day=2/b.parquet", 3)]
    assert list(store.list("day=2")) == [StoredSegment("day=2/b.parquet", 3)]
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
    assert list(store.list("")) == [StoredSegment("day=1/a.parquet", 2)]
    (tmp_path / "day=1/loop.parquet").symlink_to("loop.parquet")
    with pytest.raises(StoreUnavailable, match=r"loop\.parquet: Too many levels"):
        store.list("")


def test_a_root_that_cannot_be_examined_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is not a folder"):
        FolderStore(tmp_path / "nowhere").list("")
    with pytest.raises(StoreUnavailable, match="File name too long"):
        FolderStore(tmp_path / ("n" * 300)).list("")
