"""A run has its own folder and enough disk space, or fails before it starts with a clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.servers.errors import ServerError
from lab.demo.output_dir import check_space, lock_output_dir


def test_a_folder_is_locked_by_its_run(tmp_path: Path) -> None:
    out = tmp_path / "out" / "demo"
    with (
        lock_output_dir(out),
        pytest.raises(ServerError, match=f"{out}: another demo runs .* with --out"),
        lock_output_dir(out),
    ):
        pass
    with lock_output_dir(out):
        assert out.is_dir()


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ServerError, match="Not a directory; name a folder"),
        lock_output_dir(tmp_path / "file" / "out"),
    ):
        pass


def test_a_full_disk_is_named_with_the_remedy(tmp_path: Path) -> None:
    check_space(tmp_path, 0)
    with pytest.raises(ServerError, match=f"{tmp_path}: [0-9]+ MB are free, .* set TMPDIR"):
        check_space(tmp_path, 10**18)
