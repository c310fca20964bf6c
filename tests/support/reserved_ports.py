"""Loopback ports of a test's own, for servers whose configuration contains their port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from adapters.servers.free_ports import LOOPBACK


def reserve_port() -> socket.socket:
    """Return a socket whose port the kernel assigns to no other process until the socket is closed."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((LOOPBACK, 0))
    return reserved


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Distinct ports that the kernel assigns to no other process while they are reserved.

    They are bound and do not listen, so they refuse connections; a server that sets SO_REUSEADDR, as nearly all do, can
    listen on them.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(reserve_port()) for _ in range(count)]
        yield [reserved.getsockname()[1] for reserved in sockets]
