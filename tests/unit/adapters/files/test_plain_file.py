"""Only regular files are read: nothing in place of a file blocks the process, or exhausts its memory."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.files import plain_file
from adapters.files.plain_file import MAX_LINE_BYTES, file_stamp, open_plain_file, read_lines, read_plain_file
from adapters.files.tls_files import BadTlsFiles, load_authorities, load_pair, load_system_authorities

Place = Callable[[Path], object]


def place_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def write(content: bytes) -> Place:
    return lambda path: path.write_bytes(content)


NOT_FILES: list[tuple[Place, str]] = [
    (os.mkfifo, "a FIFO, not a regular file"),
    (lambda path: path.symlink_to("/dev/zero"), "a device, not a regular file"),
    (lambda path: path.symlink_to("/dev/stdin"), "not a regular file"),
    (place_socket, "a socket, not a regular file"),
    (os.mkdir, "Is a directory"),
    (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
    (lambda path: None, "No such file or directory"),
    (write(b"x" * 101), "larger than 100 bytes"),
]


@pytest.mark.parametrize(("place", "reason"), NOT_FILES, ids=[reason for _, reason in NOT_FILES])
def test_other_things_than_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Place, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    path = Path("thing")
    if reason == "not a regular file":
        readable, writable = os.pipe()
        path.symlink_to(f"/proc/self/fd/{readable}")
    else:
        place(path)
    with pytest.raises(OSError) as caught:  # noqa: PT011 (the text is compared below)
        read_plain_file(path, 100)
    assert reason in str(caught.value.strerror)
    if reason == "not a regular file":
        os.close(readable)
        os.close(writable)


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """Kubernetes mounts files of secrets through links."""
    (tmp_path / "file").write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "second").symlink_to("link")
    assert read_plain_file(tmp_path / "second", 100).content == b"x" * 100
    with open_plain_file(tmp_path / "second") as file:
        assert file.read(3) == b"xxx"


def test_a_fifo_that_takes_the_place_of_a_file_before_it_is_opened_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    real = os.stat

    def swap(*given: Any) -> os.stat_result:
        status = real(*given)
        path.unlink()
        os.mkfifo(path)
        return status

    monkeypatch.setattr(plain_file.os, "stat", swap)
    with pytest.raises(OSError, match="a FIFO, not a regular file"):
        read_plain_file(path, 100)


def test_a_stamp_shows_new_content_modes_and_owners(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert file_stamp(path) is None
    path.write_bytes(b"x")
    seen = {file_stamp(path)}
    path.chmod(0o400)
    seen.add(file_stamp(path))
    path.chmod(0o600)
    path.write_bytes(b"xx")
    seen.add(file_stamp(path))
    assert len(seen) == 3


def test_openssl_opens_no_fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo, file = tmp_path / "fifo", tmp_path / "file"
    os.mkfifo(fifo)
    file.write_text("no PEM")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for pair in ((fifo, file), (file, fifo)):
        with pytest.raises(BadTlsFiles, match="fifo: cannot be read: a FIFO"):
            load_pair(context, *pair)
    with pytest.raises(BadTlsFiles, match="fifo: cannot be read: a FIFO"):
        load_authorities(context, fifo)
    monkeypatch.setenv("SSL_CERT_FILE", str(fifo))
    with pytest.raises(BadTlsFiles, match="fifo: cannot be read: a FIFO"):
        load_system_authorities(context)


def test_lines_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """A crash may leave gigabytes of zeros without a line break in a log."""
    file = tmp_path / "log"
    file.write_bytes(b"one\n\nthree")
    assert list(read_lines(file)) == [b"one\n", b"\n", b"three"]
    with file.open("r+b") as opened:
        opened.truncate(MAX_LINE_BYTES * 1000)
    lines = read_lines(file)
    assert [next(lines), next(lines)] == [b"one\n", b"\n"]
    with pytest.raises(OSError, match="line 3 has more than 8388608 bytes"):
        next(lines)
