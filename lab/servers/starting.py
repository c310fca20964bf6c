"""Starting a server that must be told its port: try again elsewhere when another process won the port."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lab.servers.errors import PortTaken
from lab.servers.process import ServerProcess

PORT_TRIES = 5

Server = TypeVar("Server", bound=ServerProcess)


def start_server(make: Callable[[], Server], *, tries: int, timeout_s: float) -> Server:
    """A server that serves.

    Args:
        make: builds it, on ports of its choice; called again after a lost race for one.
        tries: how often to build it; 1 where the ports are given.
        timeout_s: how long each may take to serve.

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
