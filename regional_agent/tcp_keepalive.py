"""TCP keep-alive and user timeout (tcp(7)), so that the kernel detects hosts that disappear without a FIN.

Without them a connection on which nothing is written never fails, and a written one fails after fifteen minutes.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Protocol

UPSTREAM_TIMEOUT_S = 60.0
"""The host of an engine or a peer that acknowledges nothing for so long (s) is gone."""

PROBES = 4
"""Keep-alive probes sent within the timeout on an idle connection."""


class SocketOptions(Protocol):
    """A socket, or what an event loop exposes of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def set_tcp_timeout(connection: SocketOptions, timeout_s: float) -> None:
    """Close a connection whose other side acknowledges nothing for `timeout_s` (s).

    Connections accepted from a listening socket inherit the options. Does nothing where the platform has no such
    options (other than Linux).
    """
    interval_s = max(1, int(timeout_s / PROBES))
    with suppress(OSError, AttributeError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))
