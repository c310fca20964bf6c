"""Readiness checks of servers: functions that return at once and never raise."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

PROBE_TIMEOUT_S = 1.0


def http_ok(url: str, containing: bytes = b"") -> Callable[[], bool]:
    """Ready once a GET of a plain-HTTP `url` answers 2xx with `containing` in its first kilobyte."""
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
    """Ready once the server answers `send` with something that begins with `expect`."""

    def ready() -> bool:
        try:
            with socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S) as connection:
                connection.sendall(send)
                return connection.recv(len(expect)) == expect
        except OSError:
            return False

    return ready
