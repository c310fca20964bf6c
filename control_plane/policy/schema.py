"""The JSON Schema of policy files, generated from the kinds, for editors (`# yaml-language-server: $schema=...`)."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import models_json_schema

from control_plane.policy.kinds import KINDS
from control_plane.policy.kinds.base import StrictModel


def schema() -> dict[str, Any]:
    """Return the schema of a document, selected by `kind` so that editors report errors of single fields."""
    references, definitions = models_json_schema(
        [(kind.shape, "validation") for kind in KINDS.values()], title="Penstock policy document", by_alias=True
    )
    _describe_fields(definitions["$defs"])
    by_kind = [
        {"if": {"properties": {"kind": {"const": name}}}, "then": references[kind.shape, "validation"]}
        for name, kind in KINDS.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": definitions.pop("title"),
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {"kind": {"enum": list(KINDS)}},
        "allOf": by_kind,
        **definitions,
    }


def schema_text() -> str:
    """Return the content of `policies/schema.json`."""
    return json.dumps(schema(), indent=2) + "\n"


def _describe_fields(definitions: dict[str, Any]) -> None:
    """Add the docstring of each field as its description."""
    for model in _subclasses(StrictModel):
        if model.__name__ in definitions:
            properties = definitions[model.__name__]["properties"]
            for base in reversed(model.__mro__):
                if issubclass(base, StrictModel):
                    for field, text in _attribute_docstrings(base):
                        name = model.model_fields[field].alias or field
                        properties[name] = dict(sorted({**properties[name], "description": text}.items()))


def _subclasses(model: type[StrictModel]) -> Iterator[type[StrictModel]]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _attribute_docstrings(model: type[StrictModel]) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of the annotated attributes of a class at the top of its module."""
    (class_,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(class_, ast.ClassDef)
    for statement, following in zip(class_.body, class_.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.target.id, inspect.cleandoc(text)
