"""The API's description (OpenAPI 3.1): what routes say of themselves, and what holds for all of them said once.

Answers are msgspec structs, which FastAPI knows nothing of: a route names its struct with `gives`. Problems, what every
caller may be refused for, and the headers of changes are added here, so that no route can forget them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from control_plane.api import idempotency, problems
from control_plane.api.json_responses import JSON

_REF = "#/components/schemas/{name}"
_COMPONENTS = "x-components"
_PROBLEM_NAME = "Problem"

ABOUT = """\
Decides, for a fleet of inference regions, who serves whom.

Every error is a problem (RFC 9457). Lists come in pages: give `next_cursor` as `cursor`. What can be changed has an
ETag: send it in If-Match with the change. A change that carries an Idempotency-Key can be sent again without being made
twice. Every change is in the audit log, with who made it and why.
"""

TAGS = {
    "status": "The fleet at a glance, and who asks.",
    "fleet": "Regions, pools, endpoints and tenants, as policy and the newest reports have them.",
    "plans": "What agents are told to do.",
    "policies": "What people want: revisions from git, and what became of them.",
    "rollouts": "How a new policy reaches the fleet, region by region.",
    "overrides": "What operators command: drain, fail over, weigh, freeze.",
    "explain": "Why a request goes where it goes, and where a client should come in.",
    "events": "What happens, as it happens.",
    "audit": "Every change, who made it and why.",
    "agents": "For the fleet's agents alone.",
    "health": "For whoever looks after the process.",
}

_PROBLEM = {
    "type": "object",
    "title": _PROBLEM_NAME,
    "description": "What is wrong (RFC 9457). Some problems carry further members.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string", "description": "The status in words."},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "What is wrong and what to do about it, for people."},
        "errors": {
            "type": "array",
            "description": "Each field that is wrong, where the request is malformed.",
            "items": {
                "type": "object",
                "required": ["field", "problem"],
                "properties": {"field": {"type": "string"}, "problem": {"type": "string"}},
            },
        },
    },
}

_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A name of your choice for this change: sent again with it, it is answered, not made, again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": idempotency.MAX_KEY},
}

Responses = dict[int | str, dict[str, Any]]


class TwoSchemas(Exception):
    """Two types share a name, so one would be described as the other: a defect, found at the start."""


def gives(type_: Any, description: str, *, status: int = 200, media_type: str = JSON, etag: bool = False) -> Responses:
    """What a route answers, for its `responses=`.

    Args:
        type_: a struct, or whatever msgspec has a schema for.
        description: one line for people.
        status: of the answer.
        media_type: of the answer.
        etag: whether it carries an ETag, so that 304 may come instead.
    """
    (schema,), components = msgspec.json.schema_components([type_], ref_template=_REF)
    response: dict[str, Any] = {
        "description": description,
        "content": {media_type: {"schema": schema}},
        _COMPONENTS: components,
    }
    if not etag:
        return {status: response}
    response["headers"] = {"ETag": {"description": "Names this state.", "schema": {"type": "string"}}}
    return {status: response, 304: {"description": "As you have it already."}}


def describe(app: FastAPI) -> None:
    """Let `app` describe itself at its `openapi_url`."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    description=ABOUT,
                    routes=app.routes,
                    tags=[{"name": name, "description": text} for name, text in TAGS.items()],
                )
            )
        return app.openapi_schema

    # As FastAPI's own documentation has it: https://fastapi.tiangolo.com/how-to/extending-openapi/
    app.openapi = openapi  # type: ignore[method-assign]


def operation_id(route: APIRoute) -> str:
    """The resource and the function: stable, readable names for generated clients."""
    return f"{route.tags[0]}-{route.name}" if route.tags else route.name


def _described(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas[_PROBLEM_NAME] = _PROBLEM
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            changes = method.upper() in idempotency.METHODS and path not in idempotency.UNCHANGING
            _complete(operation, schemas, changes=changes)
    return document


def _complete(operation: dict[str, Any], schemas: dict[str, Any], *, changes: bool) -> None:
    """Say of one operation what holds for all of its kind: those that change something, or not."""
    text = operation.get("description", "")
    operation["summary"], _, rest = text.partition("\n")
    operation["summary"] = operation["summary"].rstrip(".")
    operation.pop("description", None)
    if rest.strip():
        operation["description"] = rest.strip()
    responses = operation["responses"]
    for response in responses.values():
        for name, schema in response.pop(_COMPONENTS, {}).items():
            if name in schemas and _says(schemas[name]) != _says(schema):
                raise TwoSchemas(f"two types are called {name}: rename one of them")
            schemas[name] = schema
    guarded = "security" in operation
    refusals = {"default": "Whatever else is wrong."}
    if guarded:
        refusals |= {
            "401": "Nobody we know.",
            "403": "The caller's role or scope is too small.",
            "429": "Too many failed logins from this address, or one like it is being worked on.",
        }
    if operation.get("parameters") or "requestBody" in operation:
        refusals |= {"422": "The request is malformed."}
    if guarded and changes:
        operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
        refusals |= {"409": "Against what is there, or under way already.", "503": "The store does not answer."}
        if any(one["name"] == "if-match" for one in operation["parameters"]):
            refusals |= {"412": "It is not as If-Match says.", "428": "If-Match is required."}
    problem = {problems.MEDIA_TYPE: {"schema": {"$ref": _REF.format(name=_PROBLEM_NAME)}}}
    for status, description in refusals.items():
        responses[status] = {"description": description, "content": problem}


def _says(schema: dict[str, Any]) -> tuple[set[str], set[str]]:
    """What tells two types apart, whoever described them: FastAPI and msgspec word things differently."""
    return set(schema.get("enum", ())), set(schema.get("properties", ()))
