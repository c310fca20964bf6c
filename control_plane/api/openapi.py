"""The OpenAPI 3.1 description of the API.

Responses are msgspec structs, which FastAPI does not describe: a route names its struct with `returns`. Problem
responses and common headers are added here, so that no route can omit them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from control_plane.api.responses import JSON, MAX_ERRORS, PROBLEM_JSON

PATH = "/openapi.json"

_REF = "#/components/schemas/{name}"
_COMPONENTS = "x-components"
_PROBLEM_NAME = "Problem"

REQUIRED_ROLE = "x-required-role"
"""Extension of an operation: the role that its caller needs."""

ABOUT = """\
Control plane of a fleet of inference regions: decides which region serves which requests.

Every error is a problem document (RFC 9457). Lists are paginated: send `next_cursor` as `cursor`. Resources that can be
changed have an ETag: send it in If-Match with the change. A PUT with an identifier of your choice can be repeated
without a second change. Every change is recorded in the audit log, with author and reason.
"""

TAGS = {
    "status": "State of the fleet, and identity of the caller.",
    "fleet": "Regions with their pools, agents and endpoints, by the policy and the newest reports.",
    "tenants": "Tenants and their API keys.",
    "plans": "Traffic plans that the control plane publishes to agents.",
    "policies": "Policies: revisions from git and the result of each.",
    "rollouts": "Rollouts of policies, region by region.",
    "overrides": "Overrides by operators: drain, fail over, weight, freeze.",
    "drills": "Drills on the live fleet: evacuate a region and bring it back, make the leader step down.",
    "explain": "Explanations of routing decisions, steering, and what-if evaluations.",
    "usage": "Usage and cost, from the ledger.",
    "events": "Stream of events.",
    "session": "Sessions of browsers, for the page at `/ui`.",
    "audit": "Audit log of all changes, with author and reason.",
    "agents": "Reports of the fleet's agents.",
    "health": "Liveness, readiness and metrics of the process.",
}

_PROBLEM = {
    "type": "object",
    "title": _PROBLEM_NAME,
    "description": "An error (RFC 9457). Some problems have extension members.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string", "description": "Reason phrase of the HTTP status."},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "What is wrong, and the remedy."},
        "errors": {
            "type": "array",
            "description": f"The invalid fields of a malformed request: the first {MAX_ERRORS}.",
            "items": {
                "type": "object",
                "required": ["field", "problem"],
                "properties": {"field": {"type": "string"}, "problem": {"type": "string"}},
            },
        },
    },
}

READ_ONLY = frozenset({"/v1/explain", "/v1/what-if", "/v1/policies/validate"})
"""Paths whose POST requests change nothing."""

Responses = dict[int | str, dict[str, Any]]


class DuplicateSchema(Exception):
    """Two types share a name, so the schema of one would describe the other: a defect, found at startup."""


def returns(
    type_: Any, description: str, *, status: int = 200, media_type: str = JSON, etag: bool = False
) -> Responses:
    """Describe the successful response of a route, for its `responses=`.

    Args:
        type_: a struct, or any type that msgspec has a schema for.
        description: one line.
        status: HTTP status code.
        media_type: media type of the body.
        etag: whether the response has an ETag, so that 304 is possible.
    """
    (schema,), components = msgspec.json.decode(_described_struct(type_))
    response: dict[str, Any] = {
        "description": description,
        "content": {media_type: {"schema": schema}},
        _COMPONENTS: components,
    }
    if not etag:
        return {status: response}
    response["headers"] = {"ETag": {"description": "Identifies this state.", "schema": {"type": "string"}}}
    return {status: response, 304: {"description": "Unchanged since the state of If-None-Match."}}


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a JSON body, as `requestBody` of an operation."""
    schema = msgspec.json.decode(_described_body(model))
    components = schema.pop("$defs", {}) | {model.__name__: schema}
    content = {JSON: {"schema": {"$ref": _REF.format(name=model.__name__)}}}
    return {"required": True, "content": content, _COMPONENTS: components}


# Routes share types, and what describes them takes milliseconds for each. The callers change what they get.
@cache
def _described_struct(type_: Any) -> bytes:
    return msgspec.json.encode(msgspec.json.schema_components([type_], ref_template=_REF))


@cache
def _described_body(model: type[BaseModel]) -> bytes:
    return msgspec.json.encode(model.model_json_schema(ref_template=_REF.format(name="{model}")))


def install_description(app: FastAPI) -> None:
    """Make `app` serve its description at PATH, encoded once: encoding takes some milliseconds, and no caller is
    required."""
    encoded = b""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _complete_document(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    description=ABOUT,
                    routes=app.routes,
                    tags=[{"name": name, "description": text} for name, text in TAGS.items()],
                )
            )
        return app.openapi_schema

    async def described(request: Request) -> Response:
        nonlocal encoded
        encoded = encoded or msgspec.json.encode(app.openapi())
        return Response(encoded, media_type=JSON)

    # See https://fastapi.tiangolo.com/how-to/extending-openapi/
    app.openapi = openapi  # type: ignore[method-assign]
    app.add_route(PATH, described, include_in_schema=False)


def operation_id(route: APIRoute) -> str:
    """Return tag and function name: stable, readable names for generated clients."""
    return f"{route.tags[0]}-{route.name}" if route.tags else route.name


def _complete_document(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas[_PROBLEM_NAME] = _PROBLEM
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete_operation(operation, schemas, changes=method != "get" and path not in READ_ONLY)
    return document


def _complete_operation(operation: dict[str, Any], schemas: dict[str, Any], *, changes: bool) -> None:
    """Add summary, schemas, problem responses and common headers to an operation."""
    text = operation.get("description", "")
    operation["summary"], _, rest = text.partition("\n")
    operation["summary"] = operation["summary"].rstrip(".")
    operation.pop("description", None)
    if rest.strip():
        operation["description"] = rest.strip()
    responses = operation["responses"]
    for part in (*responses.values(), operation.get("requestBody", {})):
        for name, schema in part.pop(_COMPONENTS, {}).items():
            if name in schemas and _identity(schemas[name]) != _identity(schema):
                raise DuplicateSchema(f"two types are called {name}: rename one of them")
            schemas[name] = schema
    guarded = "security" in operation
    refusals = {"default": "Any other error."}
    if guarded:
        refusals |= {
            "401": "The credential is missing or invalid.",
            "403": "The caller's role or regions do not permit the operation.",
            "429": "Too many failed logins from this address, or too many concurrent requests of this kind.",
        }
    if operation.get("parameters") or "requestBody" in operation:
        refusals |= {"422": "The request is malformed."}
    if guarded and changes:
        refusals |= {"409": "The change conflicts with the current state.", "503": "The store does not answer."}
        if any(parameter["name"] == "if-match" for parameter in operation.get("parameters", ())):
            refusals |= {"412": "The state differs from If-Match.", "428": "If-Match is required."}
    problem = {PROBLEM_JSON: {"schema": {"$ref": _REF.format(name=_PROBLEM_NAME)}}}
    for status, description in refusals.items():
        responses[status] = {"description": description, "content": problem}


def _identity(schema: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return enum values and property names, which are equal for one type although FastAPI and msgspec describe it
    differently."""
    return set(schema.get("enum", ())), set(schema.get("properties", ()))
