"""Limits of request bodies: size and time; the bodies of unauthenticated requests are withheld."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.api.body_replay import replay_body
from control_plane.api.responses import Problem, problem_response
from control_plane.auth.authentication import Access

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Maximum size (bytes) of a request body, sufficient for a policy bundle. Some routes have lower limits."""

BODY_TIMEOUT_S = 10.0
"""Maximum time (s) to receive a request body."""


class BodyLimits:
    """ASGI middleware that rejects a body that is too large or too slow before it is held in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _LimitedBody(receive)
        response_started = False

        async def track(message: Message) -> None:
            nonlocal response_started
            response_started = True
            await send(message)

        try:
            await self._app(scope, body.receive, track)
        except Problem as refused:
            # A middleware read the body: the error handlers of the application apply only to its routes.
            if response_started:
                raise
            await problem_response(refused.status_code, str(refused.detail))(scope, receive, send)


class AuthenticatedBodies:
    """ASGI middleware that withholds the body of unauthenticated requests.

    The route then rejects the request. FastAPI alone would read the body before it authenticates the caller.

    Args:
        app: the application.
        access: authenticates callers.
        open_paths: paths that require no caller and limit bodies themselves.
    """

    def __init__(self, app: ASGIApp, access: Access, open_paths: frozenset[str]) -> None:
        self._app = app
        self._access = access
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_guarded = scope["type"] == "http" and scope["path"] not in self._open_paths
        if is_guarded and await self._access.caller_of(scope) is None:
            receive = replay_body(b"", receive)
        await self._app(scope, receive, send)


class _LimitedBody:
    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._deadline = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        self._bytes = 0
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Problem(408, f"the body did not arrive within {BODY_TIMEOUT_S} s") from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._bytes > MAX_BODY_BYTES:
                raise Problem(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        return message
