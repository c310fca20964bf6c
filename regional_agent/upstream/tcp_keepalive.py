"""Has the kernel notice hosts that vanish: a laptop that is shut, a node without power. They say no goodbye, and to a
connection on which nothing is written nothing ever happens; what is written is tried again for a quarter of an hour.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Protocol

VANISHED_S = 60.0
"""An engine's or peer's host that has answered nothing for so long (s) is gone."""

PROBES = 4
"""Within that time, while nothing else is sent."""


class Options(Protocol):
    """A socket, or what an event loop shows of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def notice_vanishing(connection: Options, after_s: float) -> None:
    """End a connection whose other side acknowledges nothing for `after_s` (s); of a listening socket all are ended so.

    Elsewhere than on Linux the kernel's own times stay.
    """
    every_s = max(1, int(after_s / PROBES))
    with suppress(OSError, AttributeError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(after_s * 1000))
