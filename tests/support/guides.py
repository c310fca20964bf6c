"""Runs the commands of guides as printed, in one shell, with free ports.

A block of a page is run if its language is `sh`. Commands that need root, a cloud or a cluster have no language.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import httpx

from adapters.servers.free_ports import LOOPBACK, free_ports
from tests.support.paths import ROOT
from tests.support.wait import PATIENCE_S

PORT = re.compile(r"(\b127\.\d+\.\d+\.\d+:|\$address:|\bport: )(\d{4})\b")


def blocks(page: str) -> list[str]:
    """The commands of each block of a page of docs/."""
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)


class FreePorts(dict[str, int]):
    """Free ports by the port in a guide."""

    def __missing__(self, port: str) -> int:
        (free,) = free_ports(1)
        while free in self.values():
            (free,) = free_ports(1)
        self[port] = free
        return free

    def placed(self, text: str) -> str:
        """Replace the ports of a text with free ports."""
        return PORT.sub(lambda found: f"{found[1]}{self[found[2]]}", text)


class Terminal:
    """One shell for consecutive pages, which preserves directory, variables and background jobs.

    Args:
        directory: initial directory of the shell; the reader's checkout.
        variables: environment variables, in addition to those of this process that do not configure Penstock.
    """

    def __init__(self, directory: Path, variables: Mapping[str, str] | None = None) -> None:
        self.ports = FreePorts()
        self._output = directory / "terminal"
        self._output.mkdir()
        self._entered = 0
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-e"],
            cwd=directory,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "PENSTOCK_CONTEXTS_FILE": str(directory / "contexts.yaml"),
                "COLUMNS": "160",
                **(variables or {}),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        # If the tests are killed, all processes of the guide are killed too.
        assert self._shell.stdin is not None
        watch = f"(tail --pid={os.getpid()} -f /dev/null; kill -KILL -- -$$) & disown\n"
        self._shell.stdin.write(watch.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.wait(PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)

    def run(self, commands: str) -> str:
        """Run commands, which must succeed, and return their output. Background jobs keep running."""
        self._entered += 1
        script, out, err = (self._output / f"{self._entered}.{part}" for part in ("sh", "out", "err"))
        script.write_text(self.ports.placed(commands))
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f". {script} < /dev/null > {out} 2> {err}; echo\n".encode())
        self._shell.stdin.flush()
        ended, _, _ = select.select([self._shell.stdout], [], [], 3 * PATIENCE_S)
        succeeded = ended and self._shell.stdout.readline()
        assert succeeded, f"{script.read_text()}\n{out.read_text()}\n{err.read_text()}"
        return out.read_text()

    def until(self, command: str) -> None:
        """Wait until the command succeeds."""
        self.run(f"until {command}; do sleep 0.2; done")

    def until_ready(self, *ports: str) -> None:
        """Wait until `/readyz` responds with 200 at each port of a guide."""
        ends = time.monotonic() + 2 * PATIENCE_S
        for port in ports:
            url = f"http://{LOOPBACK}:{self.ports[port]}/readyz"
            while True:
                with suppress(httpx.HTTPError):
                    if httpx.get(url).status_code == 200:
                        break
                assert time.monotonic() < ends, f"{url} is not ready"
                time.sleep(0.05)


class Running(NamedTuple):
    """The fleet of docs/running.md."""

    terminal: Terminal
    """A shell in the directory of the fleet, with its context."""
    shown: str
    """Output of the last commands of the page."""


@contextmanager
def running_fleet(directory: Path, policy: str = "smallest") -> Iterator[Running]:
    """Run the commands of docs/running.md with a policy of policies/examples."""
    (directory / "policies").symlink_to(ROOT / "policies")
    with Terminal(directory) as terminal:
        prepare, control_plane, engine, agent, ask = blocks("running.md")
        client, peer = (f"http://{LOOPBACK}:{port}" for port in (2379, 2380))
        urls = f"--listen-client-urls {client} --advertise-client-urls {client} --listen-peer-urls {peer}"
        urls += f" --initial-advertise-peer-urls {peer} --initial-cluster default={peer}"
        prepare = prepare.replace(". .venv/bin/activate\n", "").replace("examples/smallest", f"examples/{policy}")
        terminal.run(prepare.replace("etcd --data-dir etcd", f"etcd --data-dir etcd {urls}"))
        for commands in (control_plane, engine, agent):
            terminal.run(commands)
        terminal.until_ready("8602", "8400")
        yield Running(terminal, terminal.run(ask))
