"""A child process imports the same modules as its parent: `python -m` alone would search the working directory first.

A worker of an agent that is started in a checkout would otherwise run its sources in place of the compiled modules, and
any file of that directory could stand for a library.
"""

from __future__ import annotations

import ast

from tests.support.paths import ROOT


def test_children_do_not_import_from_the_working_directory() -> None:
    started = []
    for package in ("penstock", "adapters", "control_plane", "regional_agent"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.List | ast.Tuple):
                    options = [each.value for each in node.elts if isinstance(each, ast.Constant)]
                    if "-m" in options:
                        started.append(path.stem)
                        assert "-P" in options[: options.index("-m")], f"{path}:{node.lineno}: add -P before -m"
    assert sorted(started) == ["cli", "uploader_process"]
