"""The errors of msgspec for untrusted bytes: invalid UTF-8 and deep nesting raise distinct errors."""

from __future__ import annotations

import ast

import msgspec
import pytest

from tests.support.paths import ROOT

READERS = ("penstock", "adapters", "control_plane", "regional_agent")
FROM_FILES = ROOT / "control_plane" / "cli" / "commands", ROOT / "control_plane" / "cli" / "demand_file.py"
"""Decode text that was opened as such."""

RAISED = {"DecodeError", "UnicodeDecodeError", "RecursionError"}


@pytest.mark.parametrize(
    ("raw", "raised"),
    [(b'{"a":', "DecodeError"), (b'{"a":"\xff"}', "UnicodeDecodeError"), (b"[" * 100_000, "RecursionError")],
)
def test_msgspec_raises_three_kinds_of_error(raw: bytes, raised: str) -> None:
    with pytest.raises((ValueError, RecursionError)) as error:
        msgspec.json.decode(raw)
    assert error.type.__name__ == raised


def test_every_reader_catches_all_of_them() -> None:
    missing = []
    for file in (file for package in READERS for file in (ROOT / package).rglob("*.py")):
        if any(file.is_relative_to(path) for path in FROM_FILES):
            continue
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "DecodeError" in text else ():
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                caught = {name.rpartition(".")[2] for name in ast.unparse(node.type).strip("()").split(", ")}
                if "DecodeError" in caught and not caught >= RAISED:
                    missing.append(f"{file.relative_to(ROOT)}:{node.lineno} lacks {', '.join(sorted(RAISED - caught))}")
    assert missing == []
