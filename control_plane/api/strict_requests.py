"""Strict checking of requests against the OpenAPI description.

Unknown and repeated query parameters are rejected: a misspelt filter must not return everything, and parsers disagree
about which value of a repeated name counts. So is a change with an Idempotency-Key: a client that sends one relies on
it when it repeats the request. A 405 response names the methods that the path has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.routing import compile_path

from control_plane.api.openapi import READ_ONLY
from control_plane.api.responses import Problem, problem_response

MAX_PARAMETERS = 100
"""Maximum number of query parameters of a request."""

IDEMPOTENCY_KEY = "idempotency-key"

NO_IDEMPOTENCY_KEYS = (
    "Idempotency-Key is not supported: leave it out; to repeat a request safely, PUT an override, a drill or a"
    " tenant with its identifier, and send the ETag that you read as If-Match with all other changes"
)


def check_described(request: Request, path: str) -> None:
    """Check a request for a path of the description, such as `/v1/regions/{name}`.

    Raises:
        Problem: 400, a change has an Idempotency-Key; 422, a query parameter is unknown, or is repeated and not a list,
            or there are too many; 405, the description has this literal path without the method, although a path with
            parameters matches.
    """
    paths = request.app.openapi()["paths"]
    method = request.method
    if IDEMPOTENCY_KEY in request.headers and method == "POST" and path not in READ_ONLY:
        raise Problem(400, NO_IDEMPOTENCY_KEYS)
    if path != request.url.path and request.url.path in paths:
        raise _method_not_allowed(paths[request.url.path])
    parameters = paths[path][method.lower()].get("parameters", ())
    known = {parameter["name"]: parameter["schema"] for parameter in parameters if parameter["in"] == "query"}
    unknown = f"unknown parameter; known: {', '.join(sorted(known))}" if known else "unknown parameter; there are none"
    if len(request.query_params.multi_items()) > MAX_PARAMETERS:
        raise Problem(422, f"query: has more than {MAX_PARAMETERS} parameters")
    wrong = dict.fromkeys(sorted(set(request.query_params) - known.keys()), unknown)
    for name in sorted(known.keys() & set(request.query_params)):
        if len(request.query_params.getlist(name)) > 1 and not _is_list(known[name]):
            wrong[name] = "is repeated; give it once"
    if wrong:
        errors = [{"field": f"query.{name}", "problem": problem} for name, problem in wrong.items()]
        raise Problem(422, f"{errors[0]['field']}: {errors[0]['problem']}", errors=errors)


def _is_list(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "array" or any(map(_is_list, schema.get("anyOf", ())))


def install_method_errors(app: FastAPI) -> None:
    """Make a 405 response name all methods of the path (RFC 9110, 15.5.6); Starlette names those of one route."""

    @app.exception_handler(405)
    async def method_not_allowed(request: Request, error: Any) -> Response:
        if not isinstance(error, Problem):
            paths = app.openapi()["paths"]
            # A literal path takes precedence over paths with parameters that also match.
            matches = [path for path in paths if path == request.url.path] or [
                path for path in paths if compile_path(path)[0].match(request.url.path)
            ]
            error = _method_not_allowed(method for path in matches for method in paths[path])
        return problem_response(405, error.detail, error.headers)


def _method_not_allowed(methods: Iterable[str]) -> Problem:
    allowed = ", ".join(sorted({method.upper() for method in methods}))
    return Problem(405, f"allowed methods: {allowed}", {"allow": allowed})
