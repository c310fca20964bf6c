"""Limits of requests: size of the query, and size and time of the body."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.api.authorisation import RouteRules
from control_plane.api.responses import Problem, problem_response

MAX_QUERY_BYTES = 16 * 1024
"""Maximum size (bytes) of a query: more than the response of an identity provider, the longest one, has."""

BODY_TIMEOUT_S = 10.0
"""Maximum time (s) to receive a request body."""


class RequestLimits:
    """ASGI middleware that rejects a query or a body that is too large, or a body that is too slow.

    Args:
        app: the application.
        rules: the maximum size of each route's body.
    """

    def __init__(self, app: ASGIApp, rules: RouteRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(scope["query_string"]) > MAX_QUERY_BYTES:
            await problem_response(414, f"the query is larger than {MAX_QUERY_BYTES} bytes")(scope, receive, send)
            return
        rule = self._rules.of(scope)
        body = _LimitedBody(receive, rule.max_body_bytes if rule is not None else 0)

        async def track(message: Message) -> None:
            if body.is_refused and not body.is_answered and message.get("status", 0) < 400:
                return  # The beginning of a streamed response, which is not to be cut off afterwards.
            body.is_answered = True
            await send(message)

        try:
            await self._app(scope, body.receive, track)
        except Problem as refused:
            # A middleware read the body: the error handlers of the application apply only to its routes.
            if body.is_answered:
                raise
            await problem_response(refused.status_code, str(refused.detail))(scope, receive, send)


class _LimitedBody:
    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._deadline = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        self._bytes = 0
        self._complete = False
        self.is_refused = False
        """Whether the body was refused. A streamed response may begin after that, since it reads at the same time."""
        self.is_answered = False
        """Whether the response has begun. A streamed response reads what remains to notice that the client leaves;
        a refusal would cut it off."""

    async def receive(self) -> Message:
        if self._complete or self.is_answered:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            if self.is_answered:
                return await self._receive()
            raise self._refusal(408, f"the body did not arrive within {BODY_TIMEOUT_S} s") from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._bytes > self._max_bytes and not self.is_answered:
                raise self._refusal(413, f"the body is larger than {self._max_bytes} bytes, the limit of this route")
        return message

    def _refusal(self, status: int, detail: str) -> Problem:
        self.is_refused = True
        return Problem(status, detail)
