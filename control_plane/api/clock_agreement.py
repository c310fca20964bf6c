"""Refuses changes while others would ignore them, because the clock of this control plane disagrees with theirs."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.access.callers import Role
from control_plane.api.authorisation import RouteRule, RouteRules
from control_plane.api.responses import problem_response
from control_plane.leadership.clock_check import ClockCheck

CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})

BY_ANY_CLOCK = ("/v1/tenants", "/v1/revoked-keys")
"""Beginnings of the paths of changes that count by any clock, see `adapters.store.signed_store`."""


class ClockAgreement:
    """ASGI middleware that checks the clock before a change.

    Args:
        app: the application.
        clocks: compares the clocks.
        rules: the role that each route requires.
    """

    def __init__(self, app: ASGIApp, clocks: ClockCheck, rules: RouteRules) -> None:
        self._app = app
        self._clocks = clocks
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["method"] in CHANGES and _writes(self._rules.of(scope)):
            problem = await self._clocks.problem()
            if problem:
                detail = (
                    f"{problem}, so that other processes would ignore the change; synchronise the clocks (NTP), stop"
                    " the agents whose clocks are wrong, or send the change to another control plane"
                )
                await problem_response(503, detail)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _writes(rule: RouteRule | None) -> bool:
    """Whether a route writes values that count by the clock alone."""
    is_change = rule is not None and rule.role not in (None, Role.VIEWER)
    return rule is not None and is_change and not rule.path.startswith(BY_ANY_CLOCK)
