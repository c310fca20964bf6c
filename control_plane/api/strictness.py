"""What the description says is what is taken: unknown query parameters are refused, and 405 names what can be done.

A misspelt filter must not answer for everything.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.routing import compile_path

from control_plane.access.required import Viewer
from control_plane.problems import Problem, problem


async def known_query(request: Request, caller: Viewer) -> None:
    """A dependency that refuses (422) a caller's query parameter that the operation does not have."""
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        told = f"there are {', '.join(sorted(known))}" if known else "there are none here"
        errors = [{"field": f"query.{name}", "problem": f"no such parameter; {told}"} for name in unknown]
        raise Problem(422, f"query.{unknown[0]}: no such parameter; {told}", errors=errors)


def tell_methods(app: FastAPI) -> None:
    """Let a 405 name every method that the path has (RFC 9110, 15.5.6); Starlette names those of one route."""

    @app.exception_handler(405)
    async def no_such_method(request: Request, error: Any) -> Response:
        allowed = sorted(
            method.upper()
            for template, operations in app.openapi()["paths"].items()
            if compile_path(template)[0].match(request.url.path)
            for method in operations
        )
        return problem(405, f"only {', '.join(allowed)} can be done here", {"allow": ", ".join(allowed)})
