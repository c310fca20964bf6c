"""A process whose etcd is away waits for it almost for free."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab.servers.etcd import EtcdServer

MOST = 0.05


@pytest.mark.parametrize("how", ["gone", "hung"])
def test_no_busy_loop_while_etcd_is_away(own_etcd: EtcdServer, how: str) -> None:
    if how == "gone":
        own_etcd.kill()
    else:
        own_etcd.pause()
    # In a process of its own, so that nothing but these clients is measured.
    run = subprocess.run(
        [sys.executable, "-m", "tests.cpu_of_waiting_clients", own_etcd.endpoint],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert float(run.stdout.splitlines()[-1]) < MOST
