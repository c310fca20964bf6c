"""Forks Penstock's programs from a process that has imported them, which saves 1.3 s of CPU time per control plane.

A forked program has a separate session, environment, log and exit code. Other programs, and programs whose environment
changes what the dynamic linker or Python loads, are executed as usual.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from adapters.servers.die_with_parent import PR_SET_PDEATHSIG
from adapters.servers.process import Running, spawn_program

ENTRY_POINTS = {
    "penstock": ("control_plane.cli.main", "main"),
    "penstock-agent": ("regional_agent.cli", "main"),
    "penstock-lab": ("lab.cli", "main"),
}

PRELOADED = (
    *(module for module, _ in ENTRY_POINTS.values()),
    "control_plane.cli.commands.serve_command",
    "control_plane.serve",
    "regional_agent.daemon",
    "regional_agent.workers.supervisor",
    "lab.commands.engine_command",
    "lab.commands.wan_command",
)

MAX_MESSAGE_BYTES = 1 << 20


class ForkServer:
    """Client of the fork server; thread-safe. The server ends when this process ends."""

    def __init__(self) -> None:
        """Create a client; the first `spawn` starts the server."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def spawn(self, argv: Sequence[str], env: Mapping[str, str] | None, log: BinaryIO) -> Running:
        """Start a program; same interface as `adapters.servers.process.spawn_program`."""
        environment = dict(os.environ if env is None else env)
        own = Path(argv[0]).parent == Path(sys.executable).parent and Path(argv[0]).name in ENTRY_POINTS
        if not own or _loads(environment) != _loads(os.environ):
            return spawn_program(argv, env, log)
        request = {"argv": list(argv), "env": environment, "cwd": os.getcwd()}
        with self._lock:
            pid, fds = self._ask(request, [log.fileno()])
        return ForkedProcess(self, pid, fds[0])

    def reap(self, pid: int) -> int:
        """Return the exit code of a process that has ended; negative for a signal."""
        with self._lock:
            return self._ask({"reap": pid}, [])[0]

    def _ask(self, request: Mapping[str, Any], fds: Sequence[int]) -> tuple[int, list[int]]:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                os.set_inheritable(theirs.fileno(), True)
                argv = [sys.executable, "-m", __name__, str(theirs.fileno())]
                spawn_program(argv, None, sys.__stderr__.buffer, pass_fds=[theirs.fileno()])
        socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
        answer, answered, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE_BYTES, 1)
        if not answer:
            raise RuntimeError("the fork server has ended; see the standard error of this run")
        return int(answer), answered


class ForkedProcess:
    """A process that the fork server started, with the methods of subprocess.Popen that `ServerProcess` uses."""

    def __init__(self, server: ForkServer, pid: int, pidfd: int) -> None:
        """Args: `pidfd` is closed when the process has ended."""
        self.pid = pid
        self._server = server
        self._pidfd = pidfd
        self._lock = threading.Lock()
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return the exit code.

        Raises:
            subprocess.TimeoutExpired: the process still runs after `timeout` seconds.
        """
        returncode = self._wait(timeout)
        if returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return returncode

    def _wait(self, timeout_s: float | None) -> int | None:
        with self._lock:
            if self._returncode is None:
                ended = select.poll()
                ended.register(self._pidfd, select.POLLIN)
                if ended.poll(None if timeout_s is None else timeout_s * 1000):
                    self._returncode = self._server.reap(self.pid)
                    os.close(self._pidfd)
            return self._returncode


def _loads(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that determine which code a process loads, which a fork cannot change."""
    return {name: value for name, value in environment.items() if name.startswith(("LD_", "PYTHON"))}


def _serve(requests: socket.socket) -> Callable[[], object] | None:
    """Serve requests until the client disconnects. In a fork, return the entry point to run."""
    own_pid = os.getpid()
    while True:
        message, fds, _, _ = socket.recv_fds(requests, MAX_MESSAGE_BYTES, 1)
        if not message:
            return None
        request = json.loads(message)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            requests.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        ready, in_session = os.pipe()
        pid = os.fork()
        if pid == 0:
            requests.close()
            os.close(ready)
            os.setsid()
            os.close(in_session)
            return _become(request, fds[0], own_pid)
        os.close(in_session)
        # Ends when the fork has a separate process group, from when the client may send a signal to the group.
        os.read(ready, 1)
        os.close(ready)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(requests, [b"%d" % pid], [pidfd])
        os.close(pidfd)
        os.close(fds[0])


def _become(request: Mapping[str, Any], log: int, starter_pid: int) -> Callable[[], object]:
    """Configure this fork as the requested program and return its entry point."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter_pid:
        sys.exit("the starting process has ended")
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    module, function = ENTRY_POINTS[Path(sys.argv[0]).name]
    entry: Callable[[], object] = getattr(sys.modules[module], function)
    return entry


def main() -> None:
    """Import the modules of the programs, and serve on the socket whose descriptor is the argument."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    entry = _serve(requests)
    if entry is not None:
        entry()


if __name__ == "__main__":
    main()
