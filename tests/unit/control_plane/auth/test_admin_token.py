"""The admin token is accepted, other credentials are rejected, and the token is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.files.secret_file import BadSecret
from control_plane.auth.admin_token import AdminToken, load_admin_token

TOKEN = "0123456789abcdef0123456789abcdef"


def test_the_token_is_accepted() -> None:
    assert AdminToken(TOKEN).is_token(TOKEN)


@pytest.mark.parametrize("credential", ["", " ", f"{TOKEN}0", TOKEN[:-1], TOKEN.upper(), "ä", "\udcff"])
def test_other_credentials_are_rejected(credential: str) -> None:
    assert not AdminToken(TOKEN).is_token(credential)


def test_the_token_does_not_appear_in_its_representation() -> None:
    assert TOKEN not in repr(AdminToken(TOKEN))


def test_the_token_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"\n{TOKEN}\n")
    assert load_admin_token(path).header() == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file of the admin token is empty"),
        (b"short", "the admin token has 5 bytes, fewer than 16"),
        (b"two words are no token", "not a token"),
        (b"two-lines-that-are\nno-token-of-ours-either", "the admin token must be one line"),
        ("ä".encode() * 20, "not a token"),
        (b"x" * 70_000, "cannot read the admin token: larger than"),
    ],
)
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(BadSecret) as caught:
        load_admin_token(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "openssl rand -hex 32" in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSecret, match="No such file or directory"):
        load_admin_token(tmp_path / "absent")
