"""A process whose etcd is unavailable uses almost no processor time while it waits."""

from __future__ import annotations

import socket
import subprocess
import sys

from adapters.servers.etcd import EtcdServer
from adapters.servers.free_ports import LOOPBACK
from tests.support.wait import PATIENCE_S

MAX_SHARE = 0.2
"""Maximum CPU time, as a share of elapsed time. The clients use 0.03; a busy loop uses 1."""


def test_no_busy_loop_while_etcd_is_unavailable_or_hung(own_etcd: EtcdServer) -> None:
    own_etcd.pause()
    with socket.socket() as nobody:
        # Bound without listening: connections are refused, and no other process can use the port.
        nobody.bind((LOOPBACK, 0))
        # In separate processes, so that only these clients are measured.
        measuring = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.cpu_of_waiting_clients", endpoint],
                stdout=subprocess.PIPE,
                text=True,
            )
            for endpoint in (f"{LOOPBACK}:{nobody.getsockname()[1]}", own_etcd.endpoint)
        ]
        shares = [float(process.communicate(timeout=PATIENCE_S)[0].splitlines()[-1]) for process in measuring]
    assert max(shares) < MAX_SHARE, shares
