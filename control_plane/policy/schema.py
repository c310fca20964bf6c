"""The JSON Schema of policy files, derived from the structs, for editors (`# yaml-language-server: $schema=...`)."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import msgspec.inspect as types

from control_plane.policy.document_fields import DESCRIPTION, MAX_DESCRIPTION, document_fields
from control_plane.policy.kinds import API_VERSION, KINDS

_REF = "#/$defs/{name}"


def schema() -> dict[str, Any]:
    """Return the schema of a document, selected by `kind` so that editors report errors of single fields."""
    structs = [kind.struct for kind in KINDS.values()]
    _, definitions = msgspec.json.schema_components(structs, ref_template=_REF)
    for type_ in _nested(types.multi_type_info(structs)):
        name = type_.cls.__name__
        if "description" in definitions[name]:
            # Python 3.13 removes the indentation of docstrings itself.
            definitions[name]["description"] = inspect.cleandoc(definitions[name]["description"])
        if isinstance(type_, types.EnumType):
            definitions[name]["enum"] = [choice.value for choice in type_.cls]
        else:
            _limit_to_documents(definitions[name], type_.cls)
    for name, kind in KINDS.items():
        definition = definitions[kind.struct.__name__]
        definition["properties"] = _common_fields(name) | definition["properties"]
        definition["required"] = ["apiVersion", "kind", *definition["required"]]
    by_kind = [
        {"if": {"properties": {"kind": {"const": name}}}, "then": {"$ref": _REF.format(name=kind.struct.__name__)}}
        for name, kind in KINDS.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Penstock policy document",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {"kind": {"enum": list(KINDS)}},
        "allOf": by_kind,
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    """Return the content of `policies/schema.json`."""
    return json.dumps(schema(), indent=2) + "\n"


def _common_fields(kind: str) -> dict[str, Any]:
    return {
        "apiVersion": {"const": API_VERSION, "description": "Version of the file format."},
        "kind": {"const": kind},
        DESCRIPTION: {
            "type": "string",
            "maxLength": MAX_DESCRIPTION,
            "default": "",
            "description": "Free text: the purpose of the document.",
        },
    }


def _limit_to_documents(definition: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Remove the fields that documents do not have, and add the docstring of each field as its description."""
    fields = document_fields(struct)
    properties = {name: definition["properties"][name] for name in fields}
    for name, field in fields.items():
        if field.is_required or "minItems" in properties[name]:
            properties[name].pop("default", None)
        elif field.may_be_null:
            properties[name].setdefault("default", None)
    for name, text in attribute_docstrings(struct):
        if name in properties:
            properties[name]["description"] = text
    for each in properties.values():
        _adapt(each)
    definition["properties"] = properties
    definition["required"] = [name for name, field in fields.items() if field.is_required]


def _adapt(value: Any) -> None:
    """Apply what holds for all documents: no list has an item twice, and what has a pattern is written as text."""
    if isinstance(value, dict):
        if value.get("type") == "array":
            value["uniqueItems"] = True
        if "pattern" in value:
            value["type"] = "string"
        for inner in value.values():
            _adapt(inner)
    elif isinstance(value, list):
        for inner in value:
            _adapt(inner)


def _nested(found: Any) -> Iterator[types.StructType | types.EnumType]:
    """Yield every struct and enumeration in the types of documents."""
    if isinstance(found, types.StructType | types.EnumType):
        yield found
    if isinstance(found, types.StructType):
        for field in document_fields(found.cls).values():
            yield from _nested(field.type)
    elif isinstance(found, types.Type):
        for part in ("type", "item_type", "key_type", "value_type", "types"):
            yield from _nested(getattr(found, part, ()))
    elif isinstance(found, list | tuple):
        for each in found:
            yield from _nested(each)


def attribute_docstrings(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of the annotated attributes of a class at the top of its module."""
    (class_,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(class_, ast.ClassDef)
    for statement, following in zip(class_.body, class_.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.target.id, inspect.cleandoc(text)
