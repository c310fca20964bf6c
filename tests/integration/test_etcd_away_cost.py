"""A process whose etcd is unavailable uses almost no processor time while it waits."""

from __future__ import annotations

import subprocess
import sys

from lab.servers.etcd import EtcdServer
from lab.servers.free_ports import LOOPBACK, free_ports

MAX_SHARE = 0.2


def test_no_busy_loop_while_etcd_is_gone_or_hung(own_etcd: EtcdServer) -> None:
    own_etcd.pause()
    nobody = f"{LOOPBACK}:{free_ports(1)[0]}"
    # In processes of their own, so that nothing but these clients is measured.
    measuring = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.cpu_of_waiting_clients", endpoint],
            stdout=subprocess.PIPE,
            text=True,
        )
        for endpoint in (nobody, own_etcd.endpoint)
    ]
    shares = [float(process.communicate(timeout=60)[0].splitlines()[-1]) for process in measuring]
    assert max(shares) < MAX_SHARE, shares
