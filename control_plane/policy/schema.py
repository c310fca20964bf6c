"""The JSON Schema of policy files, generated from the kinds, for editors (`# yaml-language-server: $schema=...`)."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import models_json_schema

from control_plane.policy.kinds import KINDS


def schema() -> dict[str, Any]:
    """Return the schema of a document, selected by `kind` so that editors report errors of single fields."""
    references, definitions = models_json_schema(
        [(kind.shape, "validation") for kind in KINDS.values()], title="Penstock policy document", by_alias=True
    )
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
