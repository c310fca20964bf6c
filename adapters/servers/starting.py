"""Starts a server on a configured port, and retries with other ports if the port is in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from adapters.servers.errors import PortTaken
from adapters.servers.process import ServerProcess

PORT_TRIES = 5

Server = TypeVar("Server", bound=ServerProcess)


def start_server(make: Callable[[], Server], *, tries: int, timeout_s: float) -> Server:
    """Start a server and wait until it is ready.

    Args:
        make: creates the server with new ports; called for each attempt.
        tries: maximum number of attempts; 1 for fixed ports.
        timeout_s: maximum time (s) until the server is ready, for each attempt.

    Raises:
        PortTaken: the port was in use in every attempt.
        NotReady: the server is not ready within `timeout_s`; it was killed.
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
