"""The reference page of the HTTP API, from its OpenAPI description."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from adapters.store.members import Member
from control_plane.api.json_bodies import MAX_BODY
from control_plane.api.openapi import REQUIRED_ROLE
from control_plane.api.responses import JSON
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.policy.folder import FolderReader
from docs.reference_tables import Schema, attribute_docstrings, cell, classes, default_text, table, type_text
from lab.memory_store import MemoryStore
from penstock.wire.authority import standalone_identity
from penstock.wire.identity import ProcessRole, SpiffeId
from penstock.wire.peer_keys import Keyring

STRUCT_PACKAGES = ("penstock", "adapters", "control_plane")
"""Packages with the classes of requests and responses."""


def api_page() -> str:
    """Every route with its role, parameters, body, responses and errors, and every type of them."""
    document = description()
    definitions = document["components"]["schemas"]
    nested: dict[str, Schema] = {}
    parts = [
        "# HTTP API\n",
        "The routes of a control plane, generated from its OpenAPI description (`GET /openapi.json`). "
        "[api.md](../api.md) explains authentication, errors, pagination, conditional changes and repeated requests.\n",
        "Every error is a [Problem](#problem). Routes without a role require no credential.\n",
        _errors(document),
    ]
    for tag in document["tags"]:
        parts.append(f"## Routes: {tag['name']}\n\n{tag['description']}\n")
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    parts.append(_operation(f"{method.upper()} {path}", operation, definitions, nested))
    nested["Problem"] = definitions["Problem"]
    parts.append("## Types\n")
    docstrings = _Docstrings()
    done: set[str] = set()
    types: dict[str, str] = {}
    while waiting := set(nested) - done:
        for name in waiting:
            done.add(name)
            types[name] = _type(name, definitions, nested, docstrings)
    return "\n".join([*parts, *(types[name] for name in sorted(types))])


@cache
def description() -> dict[str, Any]:
    """Return the OpenAPI description of a control plane that is not started."""
    id_ = SpiffeId("reference", ProcessRole.CONTROL_PLANE, "reference")
    control_plane = ControlPlane(
        MemoryStore(),
        Member("reference", "http://localhost"),
        keyring=Keyring(standalone_identity(id_, 1.0e9)),
        policy_reader=FolderReader(Path("policies")),
    )
    return control_plane.create_api(Access(AdminToken("0" * 64))).openapi()


def _errors(document: dict[str, Any]) -> str:
    """A table of the error statuses that operations name."""
    meanings = {
        status: response["description"]
        for methods in document["paths"].values()
        for operation in methods.values()
        for status, response in operation["responses"].items()
        if status.startswith(("4", "5"))
    }
    return table("status | meaning", [f"| {status} | {cell(meanings[status])} |" for status in sorted(meanings)])


def _operation(title: str, operation: dict[str, Any], definitions: dict[str, Schema], nested: dict[str, Schema]) -> str:
    role = operation.get(REQUIRED_ROLE)
    blocks = [f"### {title}\n", f"{operation['summary']}." + (f" Role: `{role}`." if role else "") + "\n"]
    if "description" in operation:
        blocks.append(" ".join(operation["description"].split()) + "\n")
    blocks.append(
        table(
            "parameter | in | type | default | meaning",
            [_parameter(parameter, definitions, nested) for parameter in operation.get("parameters", ())],
        )
    )
    if body := operation.get("requestBody"):
        limit = f", at most {operation[MAX_BODY] // 1024} KiB" if MAX_BODY in operation else ""
        blocks.append(f"Body: {_content(body, definitions, nested)}{limit}.\n")
    responses, errors = [], []
    for status, response in sorted(operation["responses"].items()):
        if status.startswith(("4", "5")):
            errors.append(status)
        elif status != "default":
            responses.append(
                f"| {status} | {_content(response, definitions, nested)} | {cell(response['description'])} |"
            )
    blocks.append(table("status | body | meaning", responses))
    if errors:
        blocks.append(f"Errors: {', '.join(errors)}.\n")
    return "\n".join(block for block in blocks if block)


def _parameter(parameter: dict[str, Any], definitions: dict[str, Schema], nested: dict[str, Schema]) -> str:
    schema = parameter["schema"]
    default = (
        "required" if parameter["required"] else f"`{default_text(schema['default'])}`" if "default" in schema else ""
    )
    meaning = cell(parameter.get("description", ""))
    kind = type_text(_without_null(schema), definitions, nested)
    return f"| `{parameter['name']}` | {parameter['in']} | {kind} | {default} | {meaning} |"


def _without_null(schema: Schema) -> Schema:
    """Return the schema of a parameter that is given; null stands for one that is absent."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    return {"anyOf": choices} if choices else schema


def _content(message: dict[str, Any], definitions: dict[str, Schema], nested: dict[str, Schema]) -> str:
    """Return the types of a body: its schema if it is JSON, else its media type."""
    kinds = []
    for media_type, content in message.get("content", {}).items():
        if media_type != JSON:
            kinds.append(f"`{media_type}`")
        elif content.get("schema"):
            kinds.append(type_text(content["schema"], definitions, nested))
    return " or ".join(kinds)


class _Docstrings:
    """Docstrings of the attributes of classes; msgspec does not put them into its schemas."""

    def __init__(self) -> None:
        self._found: dict[str, list[dict[str, str]]] = {}
        for class_ in classes(*STRUCT_PACKAGES):
            attributes = {ast.unparse(node.target): text for node, text in attribute_docstrings(class_)}
            self._found.setdefault(class_.name, []).append(attributes)

    def of(self, name: str, properties: set[str]) -> dict[str, str]:
        """Return the docstrings by attribute of the class with this name and these attributes."""
        candidates = self._found.get(name.partition("_")[0], [])
        return next((found for found in candidates if properties <= found.keys()), {})


def _type(name: str, definitions: dict[str, Schema], nested: dict[str, Schema], docstrings: _Docstrings) -> str:
    definition = definitions[name]
    properties = definition.get("properties", {})
    texts = docstrings.of(name, set(properties))
    rows = []
    for field, schema in properties.items():
        meaning = cell(schema.get("description") or texts.get(field, ""))
        rows.append(f"| `{field}` | {type_text(schema, definitions, nested)} | {meaning} |")
    about = cell(definition.get("description", "").partition("\n\n")[0])
    return f"### {name}\n\n{about}\n\n{table('field | type | meaning', rows)}"
