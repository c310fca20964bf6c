"""Parts of the reference pages: tables of fields, types from JSON Schema, docstrings of attributes."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

Schema = dict[str, Any]


def cell(text: str) -> str:
    """Return text as one line that may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table(header: str, rows: list[str]) -> str:
    """Return a table, or nothing if there are no rows.

    Args:
        header: names of the columns, separated by ` | `.
        rows: lines of the table.
    """
    if not rows:
        return ""
    columns = header.count("|") + 1
    return "\n".join([f"| {header} |", "|" + "---|" * columns, *rows]) + "\n"


def type_text(field: Schema, definitions: Mapping[str, Schema], nested: dict[str, Schema]) -> str:
    """Return the type of a field as text.

    Args:
        field: its JSON Schema.
        definitions: named schemas.
        nested: receives the named schemas that the text links to.
    """
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        definition = definitions[name]
        if "enum" in definition:
            return " or ".join(f"`{value}`" for value in definition["enum"])
        nested.setdefault(name, definition)
        return f"[{name}](#{name.lower()})"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    for union in ("anyOf", "oneOf"):
        if union in field:
            return " or ".join(dict.fromkeys(type_text(choice, definitions, nested) for choice in field[union]))
    if field.get("type") == "array":
        return f"list of {type_text(field.get('items') or {}, definitions, nested)}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map of {type_text(field['additionalProperties'], definitions, nested)}"
    bounds = [
        f"{symbol} {field[key]:.12g}"
        for key, symbol in (("exclusiveMinimum", ">"), ("minimum", "≥"), ("exclusiveMaximum", "<"), ("maximum", "≤"))
        if key in field
    ]
    return " ".join([str(field.get("type", "any")), ", ".join(bounds)]).strip()


def default_text(value: Any) -> str:
    """Return a default value as JSON."""
    return json.dumps(value)


def attribute_docstrings(class_: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """Yield each annotated attribute of a class with its docstring, empty if it has none."""
    for statement, following in zip(class_.body, [*class_.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            has_docstring = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            yield statement, str(following.value.value) if has_docstring else ""  # type: ignore[union-attr]


def member_docstrings(source: str, name: str) -> dict[str, str]:
    """Return the docstring of each annotated attribute or member of the class `name` in a module."""
    module = ast.parse((ROOT / source).read_text(encoding="utf-8"))
    class_ = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)
    found = {}
    for statement, following in pairwise(class_.body):
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        if (
            isinstance(target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[target.id] = str(following.value.value)  # type: ignore[attr-defined]
    return found


def classes(*packages: str) -> Iterator[ast.ClassDef]:
    """Yield every class at the top of a module of these packages."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ast.parse(path.read_text(encoding="utf-8"))
            yield from (node for node in module.body if isinstance(node, ast.ClassDef))
