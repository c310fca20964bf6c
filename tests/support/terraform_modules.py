"""Parses Terraform modules with python-hcl2 and checks their references without provider schemas.

`terraform validate` needs the schemas of providers; these checks need only the files. Arguments of resources are not
checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import hcl2

META_ARGUMENTS = {"source", "providers", "for_each", "count", "depends_on", "version"}
_REFERENCE = re.compile(
    r"(?<![\w.\"-])(var|local)\.(\w+)|(?<![\w.\"-])module\.(\w+)(?:\[[^\]]*\])?\.(\w+)"
    r"|(?<![\w.\"-])(data\.)?(aws_\w+)\.(\w+)"
)
_MODULE = re.compile(r"(?<![\w.\"-])module\.(\w+)\b")


@dataclass
class Module:
    """One folder of .tf files."""

    folder: Path
    variables: dict[str, Any] = field(default_factory=dict)
    locals: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    """Resources by address: `aws_vpc.this`, `data.aws_region.this`."""
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: list[Any] = field(default_factory=list)

    def called(self, name: str) -> Module:
        """The module that a call refers to."""
        return read_module((self.folder / _plain(self.calls[name]["source"])).resolve())

    @property
    def required(self) -> set[str]:
        """Variables without a default."""
        return {name for name, body in self.variables.items() if "default" not in body}


def _plain(text: str) -> str:
    """Remove the quotes of labels and texts, which python-hcl2 8 keeps."""
    return text.strip('"')


def parse(path: Path) -> dict[str, Any]:
    """Parse a file with python-hcl2; equal files once."""
    return _parsed(path.read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> dict[str, Any]:
    return dict(hcl2.loads(text))


@cache
def read_module(folder: Path) -> Module:
    """Parse every file of a module."""
    module = Module(folder)
    for path in sorted(folder.glob("*.tf")):
        parsed = parse(path)
        for kind, target in (("variable", module.variables), ("output", module.outputs), ("module", module.calls)):
            for block in parsed.get(kind, []):
                target.update({_plain(name): body for name, body in block.items()})
        module.checks += parsed.get("check", [])
        for block in parsed.get("locals", []):
            module.locals.update({_plain(name): value for name, value in block.items() if not name.startswith("__")})
        for prefix, kind in (("", "resource"), ("data.", "data")):
            for block in parsed.get(kind, []):
                for type_, named in block.items():
                    for name, body in named.items():
                        module.resources[f"{prefix}{_plain(type_)}.{_plain(name)}"] = body
    return module


def references(value: Any) -> set[str]:
    """Addresses that an expression or a block contains: var.x, local.x, module.x.y, aws_x.y, data.aws_x.y."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = text.replace('\\"', '"').replace('"${', "${").replace('"', ' " ')
    found = set()
    for match in _REFERENCE.finditer(text):
        kind, name, call, output, data, type_, label = match.groups()
        found.add(f"{kind}.{name}" if kind else f"module.{call}.{output}" if call else f"{data or ''}{type_}.{label}")
    # Calls with for_each may be used as a whole, as in `for name, machine in module.agent : machine.instance_id`.
    found |= {f"module.{name}" for name in _MODULE.findall(text)}
    return found


def problems(module: Module) -> Iterator[str]:
    """References without a declaration, declarations without a reference, and invalid inputs of calls."""
    bodies = (module.locals, module.outputs, module.resources, module.calls, module.checks)
    used = references(bodies)
    for name, body in module.variables.items():
        used |= references(body) - {f"var.{name}"}
    declared = {f"var.{name}" for name in module.variables} | {f"local.{name}" for name in module.locals}
    declared |= set(module.resources) | {f"module.{name}" for name in module.calls}
    for name in module.calls:
        declared |= {f"module.{name}.{output}" for output in module.called(name).outputs}
    whole = {f"module.{name}" for name, body in module.calls.items() if "for_each" in body}
    for reference in sorted(used - declared):
        if reference.rpartition(".")[0] not in whole:
            yield f"{reference} is not declared"
    for name in sorted(declared - used):
        if name.startswith(("var.", "local.")):
            yield f"{name} is not used"
    for name, body in module.calls.items():
        called = module.called(name)
        given = {_plain(key) for key in body if not key.startswith("__")} - META_ARGUMENTS
        yield from (f"module {name}: {key} is no variable of it" for key in sorted(given - set(called.variables)))
        yield from (f"module {name}: {key} is required" for key in sorted(called.required - given))


def dependencies(root: Module) -> dict[str, set[str]]:
    """The dependency graph of a root module and its called modules: edges lead from values to their inputs."""
    graph: dict[str, set[str]] = {}

    def add(module: Module, at: str) -> None:
        def inside(value: Any) -> set[str]:
            nodes = set()
            for reference in references(value):
                kind, *rest = reference.split(".")
                if kind == "module" and len(rest) == 2:
                    nodes.add(f"{at}{rest[0]}/output.{rest[1]}")
                elif kind == "module":
                    nodes |= {f"{at}{rest[0]}/output.{name}" for name in _outputs_used(value, module, rest[0])}
                else:
                    nodes.add(f"{at}{reference}")
            return nodes

        for name, value in module.locals.items():
            graph[f"{at}local.{name}"] = inside(value)
        for name, value in module.outputs.items():
            graph[f"{at}output.{name}"] = inside(value)
        for name, value in module.resources.items():
            graph[f"{at}{name}"] = inside(value)
        for call, body in module.calls.items():
            called = module.called(call)
            add(called, f"{at}{call}/")
            for name in called.variables:
                arguments = {key: body[key] for key in (name, "for_each", "count") if key in body}
                graph[f"{at}{call}/var.{name}"] = inside(arguments)

    add(root, "")
    return graph


def _outputs_used(value: Any, module: Module, call: str) -> set[str]:
    """Outputs of a call with for_each whose names the expression contains after the name of an iterator."""
    text = json.dumps(value, default=str)
    return {name for name in module.called(call).outputs if re.search(rf"\w\.{name}\b", text)}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Nodes of a cycle; empty if there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        path.append(node)
        for target in sorted(graph.get(node, ())):
            circle = visit(target)
            if circle:
                return circle
        path.pop()
        done.add(node)
        return []

    for node in sorted(graph):
        circle = visit(node)
        if circle:
            return circle
    return []
