"""Reading a secret from a file: an unusable file is refused with its name and a remedy, and never shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.files.secret_file import MAX_FILE_BYTES, BadSecret, read_secret, read_secrets
from adapters.files.secret_reload import SecretFile
from control_plane.auth.admin_token import AdminToken, load_admin_token
from control_plane.policy.source.webhook_secret import load_webhook_secret

SECRET = b"0123456789abcdef"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "a.secret"
    file.touch(mode=0o600)
    return file


def test_each_line_is_a_secret(path: Path) -> None:
    path.write_bytes(b"\n  " + SECRET + b" \r\n\n" + SECRET[::-1] + b"\n")
    assert read_secrets(path, "test key", min_bytes=16) == [SECRET, SECRET[::-1]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file of the test key is empty; create one with `openssl rand -hex 32`"),
        (b" \n\r\n", "the file of the test key is empty"),
        (SECRET[:15], "the test key has 15 bytes, fewer than 16"),
        (SECRET + b"\nshort-secret", "test key 2 has 12 bytes, fewer than 16"),
        (SECRET * 2 + b"\n" + SECRET, "the test key must be one line"),
        (b"x" * (MAX_FILE_BYTES + 1), "cannot read the test key: larger than 65536 bytes"),
    ],
)
def test_an_unusable_file_is_refused_without_its_content(path: Path, content: bytes, problem: str) -> None:
    path.write_bytes(content)
    with pytest.raises(BadSecret) as caught:
        read_secret(path, "test key", min_bytes=16)
    assert str(caught.value).startswith(f"{path}: {problem}")
    for line in content.split():
        assert line.decode() not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o601])
def test_a_file_that_every_user_can_access_is_refused(path: Path, mode: int) -> None:
    path.write_bytes(SECRET)
    path.chmod(mode)
    with pytest.raises(BadSecret, match=f"accessible to every user of this machine; run chmod o-rwx {path}"):
        read_secret(path, "test key", min_bytes=16)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o440])
def test_its_owner_and_group_may_read_it(path: Path, mode: int) -> None:
    path.write_bytes(SECRET + b"\n")
    path.chmod(mode)
    assert read_secret(path, "test key", min_bytes=16) == SECRET


def test_a_link_is_checked_by_its_target(path: Path, tmp_path: Path) -> None:
    path.write_bytes(SECRET)
    (tmp_path / "link").symlink_to(path)
    assert read_secret(tmp_path / "link", "test key", min_bytes=16) == SECRET


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSecret, match="absent: cannot read the test key: No such file or directory; create one"):
        read_secret(tmp_path / "absent", "test key", min_bytes=16)
    with pytest.raises(BadSecret, match="cannot read the test key: Is a directory"):
        read_secret(tmp_path, "test key", min_bytes=16)


@pytest.mark.parametrize(
    ("load", "accepts"),
    [
        (load_admin_token, AdminToken.is_token),
        (load_webhook_secret, lambda secret, token: secret.delivery(None, token).is_genuine()),
    ],
)
def test_a_changed_secret_is_used_and_a_bad_one_is_not(
    tmp_path: Path, load: Callable[[Path], Any], accepts: Callable[[Any, str], bool]
) -> None:
    path, old, new = tmp_path / "secret", "the-secret-of-yesterday", "the-secret-of-today"
    path.write_text(old)
    path.chmod(0o600)
    file = SecretFile(path, load)
    in_use = file.secret
    path.write_text("short")
    with capture_logs() as logged:
        file.files.reload_if_changed()
        file.files.reload_if_changed()
    assert [(entry["event"], old in str(entry)) for entry in logged] == [
        ("file not loaded; the last good content stays in force", False)
    ]
    assert (accepts(in_use, old), accepts(in_use, new)) == (True, False)
    path.write_text(new)
    file.files.reload_if_changed()
    assert (accepts(in_use, old), accepts(in_use, new)) == (False, True)
    path.unlink()
    file.files.reload_if_changed()
    assert accepts(in_use, new)


def test_a_secret_with_corrected_permissions_is_used(path: Path) -> None:
    path.write_text("the-secret-of-yesterday")
    file = SecretFile(path, load_admin_token)
    path.write_text("the-secret-of-today")
    path.chmod(0o644)
    with capture_logs() as logged:
        file.files.reload_if_changed()
        file.files.reload_if_changed()
    assert len(logged) == 1
    assert not file.secret.is_token("the-secret-of-today")
    path.chmod(0o600)
    file.files.reload_if_changed()
    assert file.secret.is_token("the-secret-of-today")
