"""Authenticates the sender of each request by its head, and lets unauthenticated requests wait for the others.

The connection of an authenticated request has a place that strangers cannot take (`ConnectionPlaces`), and a flood of
unauthenticated requests delays the others by a few milliseconds only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.api.open_connections import connection_of
from control_plane.api.responses import problem_response
from control_plane.auth.authentication import Access
from control_plane.auth.required_roles import caller_of
from control_plane.leadership import forwarded_caller
from control_plane.leadership.forwarded_caller import ForgedCaller, ForwardedCallers
from control_plane.planning.report_intake import ReportIntake
from penstock.admission.connection_places import Standing
from penstock.wire import identity, signed_report
from penstock.wire.identity import BadIdentity
from penstock.wire.session import BadSignature

RETRY_S = 2
"""Retry-After (s) of a caller with too many connections."""


class Sender(NamedTuple):
    """The sender of an authenticated request."""

    standing: Standing
    name: str


class SenderStanding:
    """ASGI middleware that authenticates senders by the heads of their requests.

    What rejects the others, and states why, are the middlewares and routes behind this one.

    Args:
        app: the application.
        access: authenticates callers.
        callers: verifies the requests that other control planes forward.
        intake: verifies the reports of agents.
    """

    def __init__(self, app: ASGIApp, access: Access, callers: ForwardedCallers, intake: ReportIntake) -> None:
        self._app = app
        self._access = access
        self._callers = callers
        self._intake = intake
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection, sender = connection_of(scope), await self._sender(scope)
        if sender is None:
            await self._turns.take()
            if connection is not None and connection.is_closed:
                return
        elif connection is not None and not connection.authenticate(*sender):
            detail = f"{sender.name} has too many open connections"
            response = problem_response(429, detail, {"retry-after": str(RETRY_S), "connection": "close"})
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _sender(self, scope: Scope) -> Sender | None:
        headers = Headers(scope=scope)
        try:
            if (scope["method"], scope["path"]) == ("POST", signed_report.PATH):
                return Sender(Standing.PROCESS, str(self._intake.authenticate(headers).sender))
            if (token := headers.get(forwarded_caller.HEADER)) is not None:
                forwarder, _ = self._callers.verify(token, headers.get(identity.HEADER, ""))
                return Sender(Standing.PROCESS, str(forwarder))
        except (BadIdentity, BadSignature, ForgedCaller):
            return None
        caller = await caller_of(Request(scope), self._access)
        return Sender(Standing.CALLER, caller.name) if caller is not None else None


class Turns:
    """Admits one waiter in each turn of the event loop, in order of arrival."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a turn."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._admit)
        await turn

    def _admit(self) -> None:
        turn = self._waiting.popleft()
        if not turn.done():
            turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._admit)
