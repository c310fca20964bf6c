"""Authorises each request before anything of its body is read."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.api.responses import Problem
from control_plane.api.route_rules import RouteRules
from control_plane.api.serving.api_threads import working_for
from control_plane.api.strict_requests import check_described
from control_plane.auth.authentication import Access
from control_plane.auth.required_roles import authorise
from control_plane.leadership import forwarded_caller

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
