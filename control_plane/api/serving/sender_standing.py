"""Authenticates the sender of each request by its head, and begins requests of the senders in turn.

Strangers cannot displace the connection of an authenticated request (`LimitedConnections`). Requests of the fleet's
processes begin at once, and a flood of requests of one caller or one network delays those of others by a few
milliseconds only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.api.responses import problem_response
from control_plane.api.serving.open_connections import connection_of
from control_plane.auth.authentication import Access
from control_plane.auth.required_roles import caller_of
from control_plane.leadership import forwarded_caller
from control_plane.leadership.forwarded_caller import ForgedCaller, ForwardedCallers
from control_plane.planning.report_intake import ReportIntake
from penstock.admission.client_network import client_network
from penstock.admission.connection_limits import Standing
from penstock.wire import budget_exchange, identity, signed_report
from penstock.wire.identity import BadIdentity
from penstock.wire.peer_keys import BadSignature, Purpose

RETRY_S = 2
"""Retry-After (s) of a caller with too many connections."""

_OF_AGENTS = {signed_report.PATH: Purpose.REPORT, budget_exchange.PATH: Purpose.BUDGET_USES}
"""Kinds of messages of agents, by path."""


class Sender(NamedTuple):
    """The sender of a request: the name of the process or caller, or the network of a stranger."""

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
        self._turns = {Standing.STRANGER: Turns(), Standing.CALLER: Turns()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection, sender = connection_of(scope), await self._sender(scope)
        is_admitted = connection is None or sender.standing is Standing.STRANGER or connection.authenticate(*sender)
        if sender.standing in self._turns:
            await self._turns[sender.standing].take(sender.name)
        if connection is not None and connection.is_closed:
            return
        if not is_admitted:
            detail = f"{sender.name} has too many open connections"
            response = problem_response(429, detail, {"retry-after": str(RETRY_S), "connection": "close"})
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _sender(self, scope: Scope) -> Sender:
        return await self._authenticated(scope) or Sender(Standing.STRANGER, client_network(_address(scope)))

    async def _authenticated(self, scope: Scope) -> Sender | None:
        headers = Headers(scope=scope)
        try:
            purpose = _OF_AGENTS.get(scope["path"]) if scope["method"] == "POST" else None
            if purpose is not None:
                return Sender(Standing.PROCESS, str(self._intake.authenticate(headers, purpose).sender))
            if (token := headers.get(forwarded_caller.HEADER)) is not None:
                forwarder, _ = self._callers.verify(token, headers.get(identity.HEADER, ""))
                return Sender(Standing.PROCESS, str(forwarder))
        except (BadIdentity, BadSignature, ForgedCaller):
            return None
        caller = await caller_of(Request(scope), self._access)
        return Sender(Standing.CALLER, caller.name) if caller is not None else None


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


class Turns:
    """Resumes one waiter in each turn of the event loop, of one sender after the other."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, sender: str) -> None:
        """Wait for a turn."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._resume_next)
        turn = loop.create_future()
        self._waiting.setdefault(sender, deque()).append(turn)
        await turn

    def _resume_next(self) -> None:
        sender, turns = self._waiting.popitem(last=False)
        turn = turns.popleft()
        if not turn.done():
            turn.set_result(None)
        if turns:
            self._waiting[sender] = turns
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._resume_next)
