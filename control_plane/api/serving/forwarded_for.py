"""The client's address from X-Forwarded-For, which is used only if it comes from a trusted proxy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from adapters.geoip import parse_address

HEADER = b"x-forwarded-for"


def behind_proxies(app: ASGIApp, trusted: Sequence[str]) -> ASGIApp:
    """Return `app` with the client's address in the scope of each request; the header is ignored without proxies.

    Args:
        app: the application.
        trusted: addresses and networks of the trusted proxies.
    """
    if not trusted:
        return app
    return _JoinedHeader(ProxyHeadersMiddleware(app, list(trusted)))  # type: ignore[arg-type]


def is_proxy(trusted: Iterable[IPv4Network | IPv6Network], address: str) -> bool:
    """Whether an address belongs to a trusted proxy."""
    parsed = parse_address(address)
    return parsed is not None and any(parsed in network for network in trusted)


class _JoinedHeader:
    """ASGI middleware that joins repeated X-Forwarded-For headers into one (RFC 9110, 5.3).

    Some proxies add a second header instead of appending to the existing header. uvicorn reads only the last header:
    behind two such proxies, uvicorn would use the address of the first proxy as the address of every client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            values = [value for name, value in scope["headers"] if name == HEADER]
            if len(values) > 1:
                others = [(name, value) for name, value in scope["headers"] if name != HEADER]
                scope = {**scope, "headers": [*others, (HEADER, b", ".join(values))]}
        await self._app(scope, receive, send)
