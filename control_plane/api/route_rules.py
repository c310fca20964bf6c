"""What each route requires before it handles a request: the role of the caller, and the maximum size of the body."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, compile_path
from starlette.types import Scope

from adapters.access.callers import Role
from control_plane.api.json_bodies import MAX_BODY, MAX_BODY_BYTES
from control_plane.auth.required_roles import required_role


class RouteRule(msgspec.Struct, frozen=True):
    """The rule of one route."""

    role: Role | None
    """Role that the caller needs; None: the route requires no caller."""
    max_body_bytes: int
    path: str
    """As in the description, such as `/v1/regions/{name}`."""


class RouteRules:
    """Finds the rule of a request by its method and path.

    Args:
        routes: the routes, in the order in which the application matches them.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._rules: list[tuple[frozenset[str], re.Pattern[str], RouteRule]] = []
        for route in routes:
            if not isinstance(route, APIRoute):
                continue
            max_bytes = (route.openapi_extra or {}).get(MAX_BODY, MAX_BODY_BYTES)
            rule = RouteRule(required_role(route.dependant), max_bytes, route.path)
            self._rules.append((frozenset(route.methods or ()), compile_path(route.path)[0], rule))

    def of(self, scope: Scope) -> RouteRule | None:
        """Return the rule of a request; None if no route has this method and path."""
        method, path = scope["method"], scope["path"]
        for methods, pattern, rule in self._rules:
            if method in methods and pattern.match(path):
                return rule
        return None
