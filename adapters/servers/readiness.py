"""Readiness checks of servers: functions with a short timeout that never raise."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

PROBE_TIMEOUT_S = 1.0


def http_ok(url: str, containing: bytes = b"") -> Callable[[], bool]:
    """Return a check: whether a GET of `url` returns 2xx with `containing` in the first 1024 bytes of the body.

    The certificate of an https server is not verified: the check is about a server that this process has started.
    """
    parts = urlsplit(url)
    target = parts.path or "/"

    def ready() -> bool:
        connection = _connection(parts)
        try:
            connection.request("GET", target)
            response = connection.getresponse()
            return 200 <= response.status < 300 and containing in response.read(1024)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return ready


def _connection(parts: SplitResult) -> http.client.HTTPConnection:
    host, port = parts.hostname or "", parts.port
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=PROBE_TIMEOUT_S, context=context)


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
