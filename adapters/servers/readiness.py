"""Readiness checks of servers: functions with a short timeout that never raise."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

PROBE_TIMEOUT_S = 1.0


def http_ok(url: str, containing: bytes = b"") -> Callable[[], bool]:
    """Return a check: whether a GET of `url` returns 2xx with `containing` in the first 1024 bytes of the body."""
    parts = urlsplit(url)
    target = parts.path or "/"

    def ready() -> bool:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", target)
            response = connection.getresponse()
            return 200 <= response.status < 300 and containing in response.read(1024)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return ready


def tcp_reply(host: str, port: int, send: bytes, expect: bytes) -> Callable[[], bool]:
    """Return a check: whether the server's reply to `send` begins with `expect`."""

    def ready() -> bool:
        try:
            with socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S) as connection:
                connection.sendall(send)
                return connection.recv(len(expect)) == expect
        except OSError:
            return False

    return ready
