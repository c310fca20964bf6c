"""Archives and images: their bytes follow from content alone."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from release.archive import tree, write_tar, write_tar_gz
from release.image.oci_layout import layer, write_layout
from tests.support.unpacked_image import UnpackedImage

CONFIG = {"created": "2026-01-01T00:00:00Z", "architecture": "amd64", "os": "linux", "config": {"User": "1:1"}}


def write_files(folder: Path, *, umask: int, reverse: bool = False) -> Path:
    """The same files, made in another order, with other permissions and times."""
    old = os.umask(umask)
    try:
        (folder / "bin").mkdir(parents=True)
        for name in sorted(("a", "b", "bin/run"), reverse=reverse):
            (folder / name).write_text(name)
            (folder / name).chmod(0o777 & ~umask if name == "bin/run" else 0o666 & ~umask)
            os.utime(folder / name, (umask, umask))
        (folder / "link").symlink_to("bin/run")
    finally:
        os.umask(old)
    return folder


def test_order_times_owners_and_permissions_of_this_machine_do_not_count(tmp_path: Path) -> None:
    first = write_files(tmp_path / "first", umask=0o022)
    second = write_files(tmp_path / "second", umask=0o077, reverse=True)
    for number, folder in enumerate((first, second)):
        write_tar_gz(tmp_path / f"{number}.tar.gz", tree(folder, "p/"), time_s=7)
    assert (tmp_path / "0.tar.gz").read_bytes() == (tmp_path / "1.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "0.tar.gz") as archive:
        entries = [(each.name, each.mode, each.mtime, each.uid) for each in archive]
    files = [("p/a", 0o644, 7, 0), ("p/b", 0o644, 7, 0), ("p/bin", 0o755, 7, 0), ("p/bin/run", 0o755, 7, 0)]
    assert entries == [*files, ("p/link", 0o777, 7, 0)]


def test_modes_and_owners_that_differ_are_kept(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    write_tar(buffer, tree(write_files(tmp_path / "f", umask=0o022), special={"bin": (0o700, 65532)}))
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as archive:
        member = archive.getmember("bin")
    assert (member.mode, member.uid, member.gid) == (0o700, 65532, 65532)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"pipe: is no file, folder or link; remove it"):
        write_tar(io.BytesIO(), tree(tmp_path))


def test_an_image_is_the_same_when_it_is_built_again_and_its_digests_are_true(tmp_path: Path) -> None:
    digests = []
    for name, umask in (("first", 0o022), ("second", 0o077)):
        layers = [layer(tree(write_files(tmp_path / name, umask=umask)), "files"), layer([], "nothing")]
        digests.append(write_layout(tmp_path / f"{name}.tar", layers, CONFIG, {"a": "b"}, "penstock:1.2.3"))
    assert digests[0] == digests[1]
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
    image = UnpackedImage(tmp_path / "first.tar", tmp_path / "root")
    assert image.descriptor["digest"] == digests[0]
    assert image.config == CONFIG["config"]
    assert (tmp_path / "root" / "link").read_text() == "bin/run"
    (tmp_path / "second" / "a").write_text("changed")
    changed = [layer(tree(tmp_path / "second"), "files"), layer([], "nothing")]
    assert write_layout(tmp_path / "third.tar", changed, CONFIG, {"a": "b"}, "penstock:1.2.3") != digests[0]
