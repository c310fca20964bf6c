"""No product module imports itself through others, imports for type checking included."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.paths import ROOT

PACKAGES = ("penstock", "adapters", "control_plane", "regional_agent", "lab")


def modules() -> dict[str, Path]:
    """Every product module by its dotted name."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imports(source: str, known: Iterable[str]) -> set[str]:
    """The modules among `known` that a module imports, anywhere in its source."""
    names = set(known)
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= members & names or {node.module}
    return found & names


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan 1972), sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            component, stack[at:] = sorted(stack[at:]), []
            if len(component) > 1:
                found.append(component)

    for node in graph:
        if node not in index:
            visit(node)
    return sorted(found)


def test_there_are_no_import_cycles() -> None:
    known = modules()
    assert cycles({name: imports(file.read_text(), known) - {name} for name, file in known.items()}) == []


def test_a_cycle_through_a_type_checking_import_is_found() -> None:
    sources = {
        "a": "from b import B",
        "b": "import c",
        "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import A",
        "d": "from a import A",
    }
    graph = {name: imports(source, sources) for name, source in sources.items()}
    assert cycles(graph) == [["a", "b", "c"]]


def test_an_import_of_a_submodule_is_no_import_of_its_package() -> None:
    assert imports("from p import q, Name", ["p", "p.q"]) == {"p.q"}
