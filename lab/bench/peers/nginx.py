"""nginx with least_conn: from the distribution's package, because no wheel contains nginx."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from adapters.servers.errors import MissingBinary
from lab.bench.peers.peer import READY_PATH, ROOM_FOR_STREAMS, Launch

_BESIDE_PATH = "/usr/sbin/nginx"
"""Path of the package's binary, whose directory is often not on the PATH of users."""

KEPT_TO_BACKENDS = 512
"""Maximum number of idle connections to backends."""


class Nginx:
    """nginx with one worker process."""

    name = "nginx"
    settings = (
        "least_conn, worker_processes 1, no access log",
        f"keepalive {KEPT_TO_BACKENDS} to backends, HTTP/1.1, no limit of requests a connection",
        "proxy_buffering off, so that tokens pass as they come",
    )

    def program(self) -> Path:
        """Path of nginx on PATH or in /usr/sbin; raises MissingBinary."""
        found = shutil.which("nginx") or shutil.which(_BESIDE_PATH)
        if found is None:
            raise MissingBinary("nginx not found: no wheel contains it; install the package (apt install nginx-light)")
        return Path(found)

    def version(self) -> str:
        """Version such as `1.22.1`; raises MissingBinary."""
        ran = subprocess.run([self.program(), "-v"], capture_output=True, text=True, check=False)
        return ran.stderr.strip().rpartition("/")[2]

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """Return how to start an instance that writes all files below `directory`."""
        file = directory / "nginx.conf"
        argv = (str(self.program()), "-p", str(directory), "-e", "stderr", "-c", str(file))
        return Launch(argv, {file.name: configuration(port, backends, as_root=os.geteuid() == 0)}, READY_PATH)


def configuration(port: int, backends: Sequence[int], *, as_root: bool) -> str:
    """The configuration file of nginx.

    Args:
        port: loopback port to listen on.
        backends: loopback ports of the backends.
        as_root: run the worker as root, so that it can read a directory that only root can read.
    """
    servers = "\n".join(f"    server 127.0.0.1:{backend};" for backend in backends)
    return f"""\
{"user root;" if as_root else ""}
daemon off;
worker_processes 1;
worker_rlimit_nofile {2 * ROOM_FOR_STREAMS};
pid nginx.pid;
events {{
  worker_connections {2 * ROOM_FOR_STREAMS};
}}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  client_body_buffer_size 1m;
  client_max_body_size 16m;
  keepalive_requests 1000000000;
  upstream backends {{
    least_conn;
{servers}
    keepalive {KEPT_TO_BACKENDS};
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = {READY_PATH} {{
      return 200;
    }}
    location / {{
      proxy_pass http://backends;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""
