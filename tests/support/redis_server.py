"""Starts a Redis server for tests."""

from __future__ import annotations

from pathlib import Path

from adapters.servers.free_ports import free_ports
from adapters.servers.redis import RedisServer
from lab.server_starting import PORT_TRIES, start_server


def start_redis(directory: Path, *, port: int | None = None, timeout_s: float = 15.0) -> RedisServer:
    """Start a server and wait until it is ready; `port` None selects a free port.

    Raises:
        MissingBinary: Redis is not installed.
        PortTaken: `port` is in use.
        NotReady: the server is not ready within `timeout_s`.
    """

    def make() -> RedisServer:
        return RedisServer(directory, port=port or free_ports(1)[0])

    return start_server(make, tries=1 if port else PORT_TRIES, timeout_s=timeout_s)
