"""Starts a server whose port is configured; tries other ports if another process took the port first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lab.servers.errors import PortTaken
from lab.servers.process import ServerProcess

PORT_TRIES = 5

Server = TypeVar("Server", bound=ServerProcess)


def start_server(make: Callable[[], Server], *, tries: int, timeout_s: float) -> Server:
    """Start a server and wait until it serves.

    Args:
        make: builds the server with ports of its choice; called again if a port was taken.
        tries: maximum number of attempts; 1 if the ports are fixed.
        timeout_s: longest time (s) until an attempt serves.

    Raises:
        PortTaken: the port was in use, every time.
        NotReady: it does not serve within `timeout_s`; it is killed.
    """
    while True:
        server = make()
        tries -= 1
        try:
            server.start()
            server.wait_ready(timeout_s)
            return server
        except PortTaken:
            if tries <= 0:
                raise
        except BaseException:
            server.kill()
            raise
