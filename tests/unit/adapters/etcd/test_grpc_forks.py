"""gRPC in processes that start others."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, time
from pathlib import Path
import adapters.etcd.etcd_connection
import grpc
channel = grpc.insecure_channel("127.0.0.1:1")
channel.subscribe(lambda state: None, try_to_connect=True)
def engines():
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            if "event_engine" in (task / "comm").read_text():
                found.add(task.name)
        except OSError:
            pass  # a thread that has ended
    return found
while not (before := engines()):
    time.sleep(0.01)
time.sleep(0.2)
before = engines()
if os.fork() == 0:
    os._exit(0)
os.wait()
assert before & engines(), (before, engines())
os._exit(0)
"""


def test_the_threads_of_grpc_survive_a_fork() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)
