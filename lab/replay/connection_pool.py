"""Keep-alive connections to one server: one per request in flight, and idle connections for later requests."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from lab.replay.client_http import HttpConnection

MAX_IDLE = 64
"""Maximum number of idle connections; further connections are closed after their response."""


class BadUrl(Exception):
    """A URL that this client cannot use; the message gives the reason in one line."""


class ConnectionPool:
    """Connections to one server over plain HTTP/1.1. The most recently used is reused first, so few stay open."""

    def __init__(self, url: str) -> None:
        """Raises BadUrl unless `url` is http://host:port, with nothing after it."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 80
        except ValueError:
            parts, host, port = None, None, 0
        if parts is None or host is None or parts.scheme != "http" or parts.path.strip("/") or parts.query:
            raise BadUrl(f"{url!r} is not a URL like http://127.0.0.1:8000")
        self._host, self._port = host, port
        self.authority = parts.netloc
        """host:port, for the Host header."""
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()

    async def connection(self, timeout_s: float, fresh: bool = False) -> HttpConnection:
        """Return an idle connection, or a new connection if none is idle or `fresh` is set.

        Raises:
            OSError: the server cannot be reached within `timeout_s` (TimeoutError is an OSError).
        """
        while self._idle and not fresh:
            connection = self._idle.pop()
            if not connection.closing:
                return connection
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: HttpConnection(self._keep, self._remove), self._host, self._port
            )
        if not connection.closing:
            self._open.add(connection)
        return connection

    def close(self) -> None:
        """Close every connection, idle or in use."""
        for connection in list(self._open):
            connection.close()

    def _keep(self, connection: HttpConnection) -> None:
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def _remove(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
