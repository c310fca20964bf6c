"""What the description says is what is taken: unknown and repeated names are refused, and 405 names what can be done.

A misspelt filter must not answer for everything; and of a name that comes twice, some readers take the first value and
others the last, so what one has checked would not be what another does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.routing import compile_path

from control_plane.api.problems import Problem, problem
from control_plane.auth.required_roles import Viewer


async def as_described(request: Request, caller: Viewer) -> None:
    """A dependency that holds a caller's request against the description.

    Raises:
        Problem: 400, a name comes twice in its body; 422, it has a query parameter that the operation does not have, or
            one twice that is no list; 405, its path is written out in the description and has no such method, although
            another path with parameters would fit.
    """
    paths = request.app.openapi()["paths"]
    path, method = request.scope["route"].path, request.method
    if path != request.url.path and request.url.path in paths:
        raise _no_such_method(paths[request.url.path])
    parameters = paths[path][method.lower()].get("parameters", ())
    known = {one["name"]: one["schema"] for one in parameters if one["in"] == "query"}
    told = f"no such parameter; there are {', '.join(sorted(known))}" if known else "no such parameter; there are none"
    wrong = dict.fromkeys(sorted(set(request.query_params) - known.keys()), told)
    for name in sorted(known.keys() & set(request.query_params)):
        if len(request.query_params.getlist(name)) > 1 and not _is_list(known[name]):
            wrong[name] = "comes more than once; give it once"
    if wrong:
        errors = [{"field": f"query.{name}", "problem": problem} for name, problem in wrong.items()]
        raise Problem(422, f"{errors[0]['field']}: {errors[0]['problem']}", errors=errors)
    if request.headers.get("content-type", "json").partition(";")[0].strip().lower().endswith("json"):
        # Parsed off the loop, as it may have megabytes.
        await asyncio.to_thread(_each_once, await request.body())


def _is_list(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "array" or any(map(_is_list, schema.get("anyOf", ())))


def _each_once(body: bytes) -> None:
    """Refuse JSON in which an object has a name twice; what is no JSON is left to whoever reads it."""
    try:
        json.loads(body, object_pairs_hook=_object)
    except _Twice as twice:
        problem = f"{str(twice)[:64]!r} comes more than once in one object; give it once"
        raise Problem(400, f"body: {problem}", errors=[{"field": "body", "problem": problem}]) from None
    except (ValueError, RecursionError):
        return


class _Twice(Exception):
    """A name."""


def _object(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise _Twice(name)
        seen.add(name)


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
