"""The guide to running it yourself, run: every command as it is printed, with free ports in place of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx

from lab.servers.free_ports import LOOPBACK, free_ports
from tests.support.paths import ROOT
from tests.support.wait import PATIENCE_S

PORT = re.compile(r"\b(2379|8400|8500|860[012])\b")


def blocks(text: str) -> list[str]:
    """The commands of each block."""
    return re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_its_commands_start_a_fleet_that_serves(tmp_path: Path) -> None:
    free = dict(zip(("2380", "2379", "8400", "8500", "8600", "8601", "8602"), free_ports(7), strict=True))
    commands = blocks((ROOT / "docs" / "running.md").read_text())
    assert len(commands) == 5
    urls = f"--listen-client-urls http://{LOOPBACK}:2379 --advertise-client-urls http://{LOOPBACK}:2379"
    peers = f"http://{LOOPBACK}:{free['2380']}"
    urls += f" --listen-peer-urls {peers} --initial-advertise-peer-urls {peers} --initial-cluster default={peers}"
    begin = "\n".join(commands[:4]).replace("etcd --data-dir etcd", f"etcd --data-dir etcd {urls}")
    begin = begin.replace(". .venv/bin/activate\n", "").replace("cp -r policies", f"cp -r {ROOT}/policies")
    numbered = [PORT.sub(lambda port: str(free[port[0]]), script) for script in (begin, commands[4])]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PENSTOCK_CONTEXTS_FILE": str(tmp_path / "contexts.yaml"),
        "COLUMNS": "160",
    }
    shell = subprocess.Popen(
        ["bash", "-ec", f"{numbered[0]}\nread -r wait_for_us"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _until_ready(f"http://{LOOPBACK}:{free['8602']}/readyz", f"http://{LOOPBACK}:{free['8400']}/readyz")
        shown = subprocess.run(
            ["bash", "-ec", numbered[1]],
            cwd=tmp_path / "my-fleet",
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert shown.returncode == 0, shown.stderr
        assert "leader cp-1" in shown.stdout
        assert "HTTP/1.1 200 OK" in shown.stdout, shown.stdout
        assert "x-penstock-region: eu-de" in shown.stdout
        assert "→ eu-de (home)" in shown.stdout
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)


def _until_ready(*urls: str) -> None:
    ends = time.monotonic() + 2 * PATIENCE_S
    for url in urls:
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(url).status_code == 200:
                    break
            assert time.monotonic() < ends, f"{url} is not ready"
            time.sleep(0.05)
