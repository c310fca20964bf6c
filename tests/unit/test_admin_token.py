"""The operators' token opens what it should, and is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.admin_token import AdminToken, BadAdminToken, load_admin_token

TOKEN = "0123456789abcdef0123456789abcdef"


def test_the_token_is_let_in() -> None:
    assert AdminToken(TOKEN).is_token(TOKEN)


@pytest.mark.parametrize("credential", ["", " ", f"{TOKEN}0", TOKEN[:-1], TOKEN.upper(), "ä", "\udcff"])
def test_anything_else_is_not(credential: str) -> None:
    assert not AdminToken(TOKEN).is_token(credential)


def test_a_token_does_not_show_itself() -> None:
    assert TOKEN not in repr(AdminToken(TOKEN))


def test_a_file_with_a_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"\n{TOKEN}\n")
    assert load_admin_token(path).header() == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the token has 0 bytes, fewer than 16"),
        (b"short", "the token has 5 bytes, fewer than 16"),
        (b"two words are no token", "holds no token"),
        (b"two\nlines-are-no-token-either", "holds no token"),
        ("ä".encode() * 20, "holds no token"),
        (b"x" * 5000, "holds no token"),
    ],
)
def test_a_file_without_one(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(BadAdminToken) as caught:
        load_admin_token(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "openssl rand -hex 32" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadAdminToken, match="No such file or directory"):
        load_admin_token(tmp_path / "absent")
