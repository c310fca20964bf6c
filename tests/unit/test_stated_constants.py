"""The tests of a package state its tuned constants: a test that imports one passes with any value."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.constants import constants
from tests.support.paths import ROOT

PACKAGES = sorted(each.name for each in (ROOT / "tests" / "unit" / "penstock").iterdir() if each.name != "__pycache__")

CODES = {"EVENTS", "JSON", "LINES"}
"""Numbers that stand for something, so that another value changes nothing."""


def imported(file: Path) -> set[str]:
    """The names that a module imports from the decision core, with their modules."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{each.name}" for each in node.names}
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_tuned_constant_of_the_package_is_imported(package: str) -> None:
    tuned = {
        ".".join((*each.file.relative_to(ROOT).with_suffix("").parts, each.name))
        for each in constants(package)
        if not each.name.startswith("MAX_") and each.name not in CODES
    }
    for file in (ROOT / "tests" / "unit" / "penstock" / package).rglob("test_*.py"):
        assert not tuned & imported(file), f"state the values in {file.relative_to(ROOT)}"
