"""What the description says is what is taken: unknown query parameters are refused, and 405 names what can be done.

A misspelt filter must not answer for everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.routing import compile_path

from control_plane.access.required import Viewer
from control_plane.problems import Problem, problem


async def as_described(request: Request, caller: Viewer) -> None:
    """A dependency that holds a caller's request against the description.

    Raises:
        Problem: 422, it has a query parameter that the operation does not have; 405, its path is written out in the
            description and has no such method, although another path with parameters would fit.
    """
    paths = request.app.openapi()["paths"]
    path, method = request.scope["route"].path, request.method
    if path != request.url.path and request.url.path in paths:
        raise _no_such_method(paths[request.url.path])
    known = {one["name"] for one in paths[path][method.lower()].get("parameters", ()) if one["in"] == "query"}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        told = f"there are {', '.join(sorted(known))}" if known else "there are none here"
        errors = [{"field": f"query.{name}", "problem": f"no such parameter; {told}"} for name in unknown]
        raise Problem(422, f"query.{unknown[0]}: no such parameter; {told}", errors=errors)


def tell_methods(app: FastAPI) -> None:
    """Let a 405 name every method that the path has (RFC 9110, 15.5.6); Starlette names those of one route."""

    @app.exception_handler(405)
    async def no_such_method(request: Request, error: Any) -> Response:
        if not isinstance(error, Problem):
            paths = app.openapi()["paths"]
            # A path that is written out goes before one with parameters that would match it too.
            fits = [one for one in paths if one == request.url.path] or [
                one for one in paths if compile_path(one)[0].match(request.url.path)
            ]
            error = _no_such_method(method for one in fits for method in paths[one])
        return problem(405, error.detail, error.headers)


def _no_such_method(methods: Iterable[str]) -> Problem:
    allowed = ", ".join(sorted({method.upper() for method in methods}))
    return Problem(405, f"only {allowed} can be done here", {"allow": allowed})
