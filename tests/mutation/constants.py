"""Changes the tuned constants of the decision core one by one, since mutmut changes functions only.

A constant is a number that is assigned at the top of a module, or the default of a field of a class besides 0 and 1.
Each is doubled, halved, and set to 0 (a 0 becomes 1). A change that no fast test notices survives. The defaults of
policies are left out: the check of the reference pages notices their changes.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import fast_tests_by_module
from tests.support.paths import ROOT

COPY = ROOT / "out" / "mutation"
"""The copy of the tree whose constants are changed."""

TIME_LIMIT_S = 120.0
"""Maximum time (s) of the tests of one change; a change that makes them longer is noticed."""


@dataclass(frozen=True)
class Constant:
    """A number that is assigned at the top of a module or of a class."""

    file: Path
    name: str
    line: int
    text: str
    """The assigned expression, such as `64 * 1024`."""

    def changes(self) -> Iterator[str]:
        """Expressions that replace the constant's."""
        if eval(self.text) == 0:
            yield "1"
            return
        whole = isinstance(eval(self.text), int)
        yield f"2 * ({self.text})"
        yield f"({self.text}) // 2" if whole else f"({self.text}) / 2"
        yield "0" if whole else "0.0"


def constants(package: str) -> list[Constant]:
    """The constants of a package of penstock, in order of files and lines."""
    found = []
    for file in sorted((ROOT / "penstock" / package).rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            in_class = isinstance(node, ast.ClassDef)
            for member in node.body if isinstance(node, ast.ClassDef) else [node]:
                match member:
                    case (
                        ast.AnnAssign(target=ast.Name(name), value=value)
                        | ast.Assign(targets=[ast.Name(name)], value=value)
                    ):
                        if value is not None and _is_number(value):
                            constant = Constant(file, name, value.lineno, ast.unparse(value))
                            if not in_class or (package != "policy" and eval(constant.text) not in (0, 1)):
                                found.append(constant)
    return found


def _is_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant(int() | float()):
            return not isinstance(node.value, bool)
        case ast.BinOp(left, _, right):
            return _is_number(left) and _is_number(right)
        case ast.UnaryOp(ast.USub(), operand):
            return _is_number(operand)
    return False


def survivors(package: str) -> Iterator[tuple[Constant, str, bool]]:
    """Run every change of a package's constants; yields the constant, the change, and whether it survived."""
    tests = fast_tests_by_module()
    _copy_tree()
    for constant in constants(package):
        users = [
            ".".join(file.relative_to(ROOT).with_suffix("").parts)
            for file in (ROOT / "penstock").rglob("*.py")
            if re.search(rf"\b{constant.name}\b", file.read_text())
        ]
        chosen = sorted(set().union(*(tests.get(module, set()) for module in users)))
        for change in constant.changes():
            yield constant, change, not chosen or _passes(constant, change, chosen)


def _copy_tree() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shutil.rmtree(COPY, ignore_errors=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, COPY / name)


def _passes(constant: Constant, change: str, tests: list[str]) -> bool:
    copy = COPY / constant.file.relative_to(ROOT)
    whole = copy.read_text()
    lines = whole.splitlines(keepends=True)
    before, assigns, _ = lines[constant.line - 1].partition(" = ")
    lines[constant.line - 1] = f"{before}{assigns}{change}\n"
    copy.write_text("".join(lines))
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        return (
            subprocess.run(command, cwd=COPY, env=environment, capture_output=True, timeout=TIME_LIMIT_S).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        copy.write_text(whole)
