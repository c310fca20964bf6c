"""The guide to running it yourself names every setting as the code does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.paths import ROOT

GUIDE = ROOT / "docs" / "running.md"


def settings_table(source: Path, name: str) -> str:
    """A row for each field of a class of settings: the variable, what its docstring says, what it is when not set."""
    module = ast.parse(source.read_text())
    (settings,) = [one for one in module.body if isinstance(one, ast.ClassDef) and one.name == name]
    rows = ["| setting | says | without it |", "|---|---|---|"]
    for field, text in zip(settings.body, settings.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        assert isinstance(text, ast.Expr), f"{field.target.id} has no docstring"
        assert isinstance(text.value, ast.Constant)
        says = " ".join(str(text.value.value).split()).replace("|", "\\|")
        usual = "has to be set" if field.value is None else f"`{ast.unparse(field.value)}`"
        known = {"`None`": "", "`()`": "", "`{}`": "", "`''`": "", "`Limits()`": ""}
        rows.append(f"| `{field.target.id.upper()}` | {says} | {known.get(usual, usual)} |")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("source", "name"),
    [("control_plane/settings.py", "ControlPlaneSettings"), ("regional_agent/config/settings.py", "AgentSettings")],
)
def test_every_setting_is_in_the_guide(source: str, name: str) -> None:
    table = settings_table(ROOT / source, name)
    assert table in GUIDE.read_text(), f"docs/running.md needs this table:\n{table}"
