"""Finds free loopback ports for servers whose configuration contains their port."""

from __future__ import annotations

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return distinct free loopback TCP ports. Another process may bind a port before the server does."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for held_socket in sockets:
            held_socket.bind((LOOPBACK, 0))
        return [held_socket.getsockname()[1] for held_socket in sockets]


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server can listen on a TCP port of an address of this machine."""
    with socket.socket() as candidate:
        # Servers set SO_REUSEADDR too, so that connections in TIME_WAIT do not block the port.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((host, port))
        except OSError:
            return False
    return True
