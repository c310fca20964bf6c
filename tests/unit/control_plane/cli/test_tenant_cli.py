"""`penstock tenant`: what is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from control_plane.cli.main import app

FLEET = ("--reason", "leaked", "--url", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give either --key-file or --digest"),
        (("--key-file", "{tmp}/key", "--digest", "0" * 64), "give either --key-file or --digest"),
        (("--key-file", "{tmp}/none"), "cannot read the key"),
        (("--key-file", "{tmp}/empty"), "not an API key"),
        (("--key-file", "{tmp}/two"), "not an API key"),
    ],
)
def test_a_key_is_named_once_and_by_a_file_with_one_key(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    for name, content in (("key", "secret-key"), ("empty", "\n"), ("two", "secret-key\nsecond-key\n")):
        (tmp_path / name).write_text(content)
    arguments = [option.format(tmp=tmp_path) for option in options]
    result = CliRunner().invoke(app, ["tenant", "revoke-key", *arguments, *FLEET])
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert "secret-key" not in result.output
