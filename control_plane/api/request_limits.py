"""Bounds of what a client may send: how much, for how long, and nothing before it is known who they are."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.api.body_replay import given
from control_plane.api.problems import Problem, problem
from control_plane.auth.authentication import Access

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Of any request; resources ask for less. A policy bundle fits."""

BODY_TIMEOUT_S = 10.0
"""How long (s) any body may take to arrive."""


class BoundedBodies:
    """ASGI middleware: a body that is larger or slower is refused, before anything holds it in memory whole."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
        answered = False

        async def noting(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self._app(scope, body.receive, noting)
        except Problem as refused:
            # Raised where the body was read by something outside the handlers that know problems.
            if answered:
                raise
            await problem(refused.status_code, str(refused.detail))(scope, receive, send)


class KnownBodies:
    """ASGI middleware: of somebody who is not let in no body is read, for the framework would do so before it asks who
    calls. The route refuses them.

    Args:
        app: what answers.
        access: knows who calls.
        open_to_all: paths that ask for no caller, and see to the size of bodies themselves.
    """

    def __init__(self, app: ASGIApp, access: Access, open_to_all: frozenset[str]) -> None:
        self._app = app
        self._access = access
        self._open_to_all = open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["path"] not in self._open_to_all:
            client = scope.get("client")
            credential = Headers(scope=scope).get("authorization", "")
            if await self._access.let_in(credential, client[0] if client else "") is None:
                receive = given(b"", receive)
        await self._app(scope, receive, send)


class _Body:
    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._deadline = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        self._bytes = 0
        self._whole = False

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Problem(408, f"the body did not arrive within {BODY_TIMEOUT_S} s") from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._bytes > MAX_BODY_BYTES:
                raise Problem(413, f"a request's body has at most {MAX_BODY_BYTES} bytes")
        return message
