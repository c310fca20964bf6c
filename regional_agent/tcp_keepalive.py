"""TCP keep-alive and user timeout (tcp(7)), so that the kernel detects hosts that disappear without a FIN.

Without these options an idle connection to a lost host never fails, and a connection with unacknowledged data fails
after about fifteen minutes.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Protocol

UPSTREAM_TIMEOUT_S = 60.0
"""Time (s) without an acknowledgement after which the host of an engine or a peer counts as unreachable."""

PROBES = 4
"""Keep-alive probes sent within the timeout on an idle connection."""


class SocketOptions(Protocol):
    """A socket, or the socket object that an event loop exposes."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def set_tcp_timeout(connection: SocketOptions, timeout_s: float) -> None:
    """Have the kernel close a connection whose peer acknowledges nothing for `timeout_s` (s).

    Connections accepted from a listening socket inherit the options. On platforms without these options (other than
    Linux) the function has no effect.
    """
    interval_s = max(1, int(timeout_s / PROBES))
    with suppress(OSError, AttributeError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))
