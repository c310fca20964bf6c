"""Finds constructs in compiled modules that mypyc ignores, or compiles with other semantics than Python's."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from tests.support.paths import ROOT

HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
COMPILED = HOOK["mypyc"]["include"]


def problems(source: str) -> list[str]:
    """Return the findings, each with its line and the problem."""
    tree = ast.parse(source)
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    tuples = {ast.unparse(name) for node in assigned if isinstance(node.value, ast.Tuple) for name in _targets(node)}
    found = []
    for node in ast.walk(tree):
        match node:
            # mypyc drops the options of a class, and the annotations by which msgspec decodes a struct.
            case ast.ClassDef(keywords=[_, *_]):
                found.append(f"{node.lineno}: options of class {node.name} are dropped")
            case ast.ClassDef() if any(ast.unparse(base).endswith("Struct") for base in node.bases):
                found.append(f"{node.lineno}: {node.name} is decoded by annotations, which are not kept")
            case ast.Assign(targets=[ast.Name("__slots__")]):
                found.append(f"{node.lineno}: a compiled class has a fixed layout, without __slots__")
            # mypyc gives a name one type in a function, and checks it when another except clause binds the name.
            case ast.FunctionDef() if twice := _bound_by_two_clauses(node):
                found.append(f"{node.lineno}: {twice} is bound to exceptions of two types in {node.name}")
            case ast.Slice() if any(_does_something(inner) for inner in ast.walk(node)):
                found.append(f"{node.lineno}: a call in the bounds of a slice is made twice")
            # mypyc has no constant for a name of such a tuple, and looks the name up in the module on each use.
            case ast.Module(body=body):
                found += [
                    f"{each.lineno}: names assigned together are no constants; declare each as Final"
                    for each in body
                    if isinstance(each, ast.Assign) and any(isinstance(target, ast.Tuple) for target in each.targets)
                ]
            # mypyc 2.4 takes such a constant for one without a value.
            case ast.AnnAssign(value=ast.Tuple(elts=elements)) if any(map(_is_float, elements)):
                found.append(f"{node.lineno}: a constant tuple with floats has no value; declare it without Final")
            case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[other]) if ast.unparse(other) in tuples:
                found.append(f"{node.lineno}: a tuple of numbers has no identity")
    return found


def _is_float(element: ast.expr) -> bool:
    return isinstance(element, ast.Constant) and isinstance(element.value, float)


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _bound_by_two_clauses(function: ast.FunctionDef) -> str:
    types: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            kind = ast.unparse(node.type)
            if types.setdefault(node.name, kind) != kind:
                return node.name
    return ""


def _does_something(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name("len")):
            return False
    return isinstance(node, ast.Call | ast.NamedExpr)


@pytest.mark.parametrize("file", COMPILED)
def test_a_compiled_module_has_nothing_that_would_do_something_else(file: str) -> None:
    assert problems((ROOT / file).read_text()) == []


def test_no_test_replaces_a_constant_that_is_in_the_compiled_code() -> None:
    """mypyc copies the value of a Final: a test of the compiled router would run with the value that it replaces."""
    constants = {}
    for file in COMPILED:
        names = re.findall(r"^([A-Z][A-Z_]+): Final", (ROOT / file).read_text(), re.MULTILINE)
        constants[file.removesuffix(".py").replace("/", ".")] = set(names)
    found = set()
    for path in (ROOT / "tests" / "integration").glob("test_*.py"):
        text = path.read_text()
        replaced = set(re.findall(r'setattr\(\w+, "([A-Z][A-Z_]+)"', text))
        imported = re.findall(r"^from ([\w.]+) import (.+)$", text, re.MULTILINE) if replaced else ()
        modules = {f"{package}.{name.split(' as ')[0]}" for package, names in imported for name in names.split(", ")}
        found |= {(path.name, module, name) for module in modules for name in constants.get(module, set()) & replaced}
    assert found == set()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("class A(msgspec.Struct): x: int | None", "1: A is decoded by annotations, which are not kept"),
        ("class A(Base, frozen=True): pass", "1: options of class A are dropped"),
        ("class A: __slots__ = ('x',)", "1: a compiled class has a fixed layout, without __slots__"),
        ("SHUT = (1.0, 2.0)\nopen = terms is not SHUT", "2: a tuple of numbers has no identity"),
        (
            "def f():\n try: g()\n except A as e: h(e)\n except B as e: h(e)",
            "1: e is bound to exceptions of two types in f",
        ),
        ("_A, _B = E.A, E.B", "1: names assigned together are no constants; declare each as Final"),
        ("SHUT: Final = (1, 2)\nopen = terms is not SHUT", "2: a tuple of numbers has no identity"),
        ("SHUT: Final = (1.0, 2.0)", "1: a constant tuple with floats has no value; declare it without Final"),
        ("rest = view[os.write(descriptor, view):]", "1: a call in the bounds of a slice is made twice"),
    ],
)
def test_what_mypyc_does_otherwise_is_found(source: str, problem: str) -> None:
    assert problems(source) == [problem]
    assert problems("rest = view[len(name):]") == []
