"""One server as a child process: start, wait until it serves, pause, resume, kill, stop, restart.

Every method blocks; from asyncio call them with `await asyncio.to_thread(server.start)`.
"""

from __future__ import annotations

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

from lab.servers import die_with_parent
from lab.servers.errors import MissingBinary, NotReady, PortTaken, ServerError
from lab.servers.free_ports import is_free

POLL_S = 0.02
TAIL_BYTES = 4096
FREEZE_S = 2.0
"""How long (s) the kernel may take to stop every thread of a process."""

# The kernel's death signal is tied to the parent *thread* that forked (prctl(2)), so every child is started by
# one thread that lives as long as the interpreter, whichever thread asked.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-spawner")


class Running(Protocol):
    """A process that was started: the part of subprocess.Popen that is used here."""

    pid: int

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code once the process has ended; raises subprocess.TimeoutExpired after `timeout` seconds."""


class Spawn(Protocol):
    """Starts a program with an environment (None: ours); its output goes to a log."""

    def __call__(self, argv: Sequence[str], env: Mapping[str, str] | None, log: BinaryIO) -> Running:
        """Return the process without waiting for it."""


def spawn_program(
    argv: Sequence[str], env: Mapping[str, str] | None, log: BinaryIO, *, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Execute a program; as `Spawn`."""
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
    """A program in its own session (a terminal's Ctrl-C does not reach it) that dies when this process dies.

    Args:
        name: for error messages.
        argv: the program and its arguments.
        log_path: where its standard output and error are appended.
        ready: whether it serves now; polled until true. None takes a started process for ready.
        ports: loopback ports that it will listen on, so that a port in use is reported before the server there is
            mistaken for this one.
        env: its whole environment; None inherits ours.
    """

    spawn: ClassVar[Spawn] = staticmethod(spawn_program)
    """How programs are started; tests start Penstock's own by fork."""

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
        """Process id, of the last start."""
        if self._popen is None:
            raise ServerError(f"{self.name} was never started")
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether the process exists (a paused one does)."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while alive or never started."""
        return None if self._popen is None else self._popen.poll()

    def start(self) -> None:
        """Start the process without waiting for it to serve; its log goes on where it was.

        Raises:
            MissingBinary: no such program.
            PortTaken: another process listens on one of its ports.
            ServerError: it is running already.
        """
        if self.alive:
            raise ServerError(f"{self.name} is already running (pid {self.pid})")
        program = shutil.which(self.argv[0])
        if program is None:
            raise MissingBinary(f"{self.name}: no program {self.argv[0]!r} that can be run")
        for port in self._ports:
            if not is_free(port):
                raise PortTaken(f"{self.name}: port {port} is taken by another process; choose another")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._popen = self.spawn([program, *self.argv[1:]], self._env, log)

    def wait_ready(self, timeout_s: float = 15.0) -> None:
        """Wait until the server serves.

        Raises:
            PortTaken: it ended because its port is in use.
            NotReady: it ended for another reason, or does not serve within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if not self.alive:
                tail = self.log_tail()
                error = PortTaken if "address already in use" in tail.lower() else NotReady
                raise error(f"{self.name} ended with code {self.returncode}; {self.log_path} says:\n{tail}")
            if self._ready is None or self._ready():
                return
            if time.monotonic() > deadline:
                raise NotReady(
                    f"{self.name} does not serve after {timeout_s:g} s; {self.log_path} says:\n{self.log_tail()}"
                )
            time.sleep(POLL_S)

    def pause(self) -> None:
        """Freeze it (SIGSTOP), and wait until it is: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)
        until = time.monotonic() + FREEZE_S
        while self._popen is not None and not _frozen(self._popen.pid) and time.monotonic() < until:
            time.sleep(POLL_S)

    def resume(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would; a process that is gone already is no error."""
        self._signal(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait()

    def stop(self, grace_s: float = 5.0) -> None:
        """End it in good order (SIGTERM), or by SIGKILL if it takes longer than `grace_s`."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        if not self.wait_exit(grace_s):
            self.kill()

    def restart(self, timeout_s: float = 15.0) -> None:
        """Stop it if it runs, start it with the same arguments (so on the same port), wait until it serves."""
        self.stop()
        self.start()
        self.wait_ready(timeout_s)

    def wait_exit(self, timeout_s: float) -> bool:
        """Whether the process has ended, waiting for at most `timeout_s`."""
        if self._popen is not None:
            try:
                self._popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
        return True

    def log_tail(self, lines: int = 15) -> str:
        """The last lines that it logged since it was last started."""
        try:
            with self.log_path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, end - TAIL_BYTES))
                text = log.read(TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        # The whole process group: a server's own children must not stay behind. `alive` reaps first, so the id is ours.
        if self.alive:
            os.killpg(self.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _frozen(pid: int) -> bool:
    """Whether every thread of a process is stopped, or it is gone."""
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return True
    return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)
