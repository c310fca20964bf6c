"""nginx with least_conn: from the distribution's package, since no wheel carries it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.bench.peers.peer import READY_PATH, ROOM_FOR_STREAMS, Launch
from lab.servers.errors import MissingBinary

_BESIDE_PATH = "/usr/sbin/nginx"
"""Where packages put it, which an ordinary user's PATH often lacks."""

KEPT_TO_BACKENDS = 512
"""Idle connections to backends that it keeps."""


class Nginx:
    """One worker process."""

    name = "nginx"
    settings = (
        "least_conn, worker_processes 1, no access log",
        f"keepalive {KEPT_TO_BACKENDS} to backends, HTTP/1.1, no limit of requests a connection",
        "proxy_buffering off, so that tokens pass as they come",
    )

    def program(self) -> Path:
        """On PATH or in /usr/sbin; raises MissingBinary."""
        found = shutil.which("nginx") or shutil.which(_BESIDE_PATH)
        if found is None:
            raise MissingBinary("nginx not found: no wheel has it; install the package (apt install nginx-light)")
        return Path(found)

    def version(self) -> str:
        """`1.22.1` and the like; raises MissingBinary."""
        ran = subprocess.run([self.program(), "-v"], capture_output=True, text=True, check=False)
        return ran.stderr.strip().rpartition("/")[2]

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """With every file it writes below `directory`."""
        file = directory / "nginx.conf"
        argv = (str(self.program()), "-p", str(directory), "-e", "stderr", "-c", str(file))
        return Launch(argv, {file.name: configuration(port, backends, as_root=os.geteuid() == 0)}, READY_PATH)


def configuration(port: int, backends: Sequence[int], *, as_root: bool) -> str:
    """The file that nginx reads.

    Args:
        port: where it listens on loopback.
        backends: loopback ports.
        as_root: keep its worker root, which else could not read a directory that is root's alone.
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
