"""Authorises each request before anything of its body is read, by what its route requires.

A route requires a role of the caller, and has a maximum size of the body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.access.callers import Role
from control_plane.api.json_bodies import MAX_BODY, MAX_BODY_BYTES
from control_plane.api.responses import Problem
from control_plane.api.serving.api_threads import working_for
from control_plane.api.strict_requests import check_described
from control_plane.auth.authentication import Access
from control_plane.auth.required_roles import authorise, required_role
from control_plane.leadership import forwarded_caller


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


_FORWARDED = forwarded_caller.HEADER.encode()


class Authorisation:
    """ASGI middleware that rejects requests without a caller of the required role: 401, 403, or 429.

    The caller of other requests is in the state of the request; the middlewares behind this one read it there. Requests
    that another control plane forwarded are authorised by `LeaderForwarding`, which verifies their signature.

    Args:
        app: the application.
        access: authenticates callers.
        rules: the role that each route requires.
    """

    def __init__(self, app: ASGIApp, access: Access, rules: RouteRules) -> None:
        self._app = app
        self._access = access
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        rule = self._rules.of(scope) if scope["type"] == "http" else None
        if rule is not None and rule.role is not None and all(name != _FORWARDED for name, _ in scope["headers"]):
            request = Request(scope)
            try:
                caller = await authorise(request, self._access, rule.role)
                check_described(request, rule.path)
            except Problem as refused:
                await refused.response()(scope, receive, send)
                return
            working_for.set(caller.name)
        await self._app(scope, receive, send)
