"""Who the client is where proxies are in between, by X-Forwarded-For, of which trusted proxies alone are believed."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

HEADER = b"x-forwarded-for"


def behind_proxies(app: ASGIApp, trusted: Sequence[str]) -> ASGIApp:
    """The app with the client's address in each request's scope; without trusted proxies, nobody's word is taken.

    Args:
        app: what answers.
        trusted: addresses and networks of the proxies.
    """
    if not trusted:
        return app
    return _OneLine(ProxyHeadersMiddleware(app, list(trusted)))  # type: ignore[arg-type]


class _OneLine:
    """ASGI middleware: lines of the header become one (RFC 9110, 5.3).

    Some proxies add a line of their own instead of lengthening the one that is there. uvicorn reads the last line
    alone: behind two such proxies it would take the first of them for the client, and everybody for one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            lines = [value for name, value in scope["headers"] if name == HEADER]
            if len(lines) > 1:
                others = [(name, value) for name, value in scope["headers"] if name != HEADER]
                scope = {**scope, "headers": [*others, (HEADER, b", ".join(lines))]}
        await self._app(scope, receive, send)
