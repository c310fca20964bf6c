"""Starts the worker processes of one host, restarts workers that end, and stops all workers on SIGTERM or SIGINT.

The supervisor binds the traffic port once, and every worker accepts connections from that socket. When a worker ends,
the other workers accept the connections that are queued on the socket. Workers share work in flight, queues and
locations of objects through Redis, like all agents of a region. Other regions and the control plane treat each worker
as a separate agent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import structlog

from adapters.backoff import full_jitter_s
from adapters.configuration.settings_loader import BadSettings
from adapters.logs import print_line
from adapters.service_manager import ServiceManager
from regional_agent.config.settings import AgentSettings
from regional_agent.http.listen_port import open_port

BACKOFF_BASE_S = 0.5
BACKOFF_CAP_S = 10.0

STEADY_S = 60.0
"""Minimum time (s) that a worker must run for the backoff of restarts to be reset."""

STOP_ANNOUNCEMENT_S = 60.0
"""Maximum time (s) until a worker reports how long it may take to stop; it is killed if it reports nothing."""

EXIT_BAD_SETTINGS = 2

_OF_SERVICE_MANAGER = frozenset(("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"))

_log = structlog.get_logger(__name__)


async def supervise(settings: AgentSettings, command: Sequence[str], rng: Random) -> None:
    """Run the workers until SIGTERM or SIGINT, then drain them and return.

    Args:
        settings: the settings of the host.
        command: the command that starts a worker; `--worker NUMBER --traffic-socket DESCRIPTOR` is appended.
        rng: jitter of restarts.

    Raises:
        BadSettings: the traffic address cannot be bound, or a worker rejects its settings.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    service_manager = ServiceManager.from_environment()
    listening = _bind(settings)
    workers = [Worker(number, command, listening.fileno(), rng) for number in range(1, settings.workers + 1)]
    running = [asyncio.create_task(worker.run(), name=f"worker {worker.number}") for worker in workers]
    background = [asyncio.create_task(_announce(settings, listening, workers, service_manager))]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
    _log.info("stopping workers", workers=len(workers))
    await service_manager.stopping()
    stopping.cancel()
    # The workers inherited the socket, so the kernel closes the socket when the last worker stops accepting.
    listening.close()
    await asyncio.gather(*(worker.stop(service_manager) for worker in workers))
    # A worker that waits for a restart has no process, so its task may not have ended yet.
    try:
        await asyncio.gather(*running)
    finally:
        # The watchdog of the service manager is fed until here, since workers may take minutes to stop.
        for task in background:
            task.cancel()
    _log.info("stopped")


class Worker:
    """One worker process, which is restarted whenever it ends.

    Args:
        number: number of the worker, from 1.
        command: see `supervise`.
        descriptor: file descriptor of the traffic socket, which the process inherits.
        rng: jitter of restarts.
    """

    def __init__(self, number: int, command: Sequence[str], descriptor: int, rng: Random) -> None:
        self.number = number
        self.announced = asyncio.Event()
        """Set when the worker serves for the first time."""
        self.urls: dict[str, Any] = {}
        """The name of the worker and the URLs of its listeners; printed by the worker when it begins to serve."""
        self._command = (*command, "--worker", str(number), "--traffic-socket", str(descriptor))
        self._descriptor = descriptor
        self._rng = rng
        self._stop = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._stop_within: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        """The time (s) that the worker may take to stop, by its report."""

    async def run(self) -> None:
        """Run the worker, and restart it whenever it ends, until `stop`.

        Raises:
            BadSettings: the worker rejected its settings before it had ever served.
        """
        loop, failures = asyncio.get_running_loop(), 0
        while not self._stop.is_set():
            began = loop.time()
            code = await self._run_once()
            if self._stop.is_set():
                return
            if code == EXIT_BAD_SETTINGS and not self.announced.is_set():
                raise BadSettings(f"worker {self.number} does not start; its message is above")
            failures = 0 if loop.time() - began >= STEADY_S else failures
            wait_s = full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng)
            failures += 1
            _log.error("worker ended, restarting", worker=self.number, exit_code=code, wait_s=round(wait_s, 3))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait_s)

    async def stop(self, service_manager: ServiceManager | None = None) -> None:
        """Send SIGTERM, and wait until the worker has drained and ended.

        Args:
            service_manager: is notified of the time that the worker may take; None notifies nothing.
        """
        self._stop.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        ended = asyncio.ensure_future(process.wait())
        await asyncio.wait((ended, self._stop_within), timeout=STOP_ANNOUNCEMENT_S, return_when=asyncio.FIRST_COMPLETED)
        if self._stop_within.done():
            within_s = self._stop_within.result()
            if service_manager is not None:
                await service_manager.stopping(within_s)
            await asyncio.wait((ended,), timeout=within_s)
        if not ended.done():
            _log.error("worker killed: it did not stop in time", worker=self.number)
            process.kill()
        await ended

    async def _run_once(self) -> int:
        """Run one process; returns its exit code, or the negative number of the signal that ended it.

        A process that cannot be started counts as one that ended with EX_OSERR of sysexits(3).
        """
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(self._descriptor,),
                env=_environment(os.environ),
            )
        except OSError as error:
            # For example, the host has no process or file descriptor left, which may pass.
            _log.error("worker cannot be started", worker=self.number, error=str(error))
            return os.EX_OSERR
        self._stop_within = asyncio.get_running_loop().create_future()
        _log.info("worker started", worker=self.number, pid=process.pid)
        if self._stop.is_set():
            await self.stop()
        assert process.stdout is not None
        while not process.stdout.at_eof():
            # ValueError: the line is too long, is not UTF-8, or is not JSON.
            with suppress(ValueError, RecursionError):
                report = msgspec.json.decode(await process.stdout.readline(), type=dict[str, Any])
                if "stopping" in report:
                    self._on_stopping(report.get("within_s"))
                else:
                    self.urls = report
                    self.announced.set()
        return await process.wait()

    def _on_stopping(self, within_s: object) -> None:
        if isinstance(within_s, float | int) and not self._stop_within.done():
            self._stop_within.set_result(within_s)


async def _announce(
    settings: AgentSettings, listening: socket.socket, workers: Sequence[Worker], service_manager: ServiceManager
) -> None:
    """Report readiness once every worker serves, then feed the watchdog."""
    host, port = listening.getsockname()[:2]
    for worker in workers:
        await worker.announced.wait()
    urls = [worker.urls for worker in workers]
    summary = {"supervisor": settings.name, "region": settings.region, "workers": urls}
    print_line(msgspec.json.encode(summary).decode())
    _log.info("serving", host=host, port=port, workers=len(workers))
    await service_manager.ready()
    await service_manager.keep_watchdog()


def _bind(settings: AgentSettings) -> socket.socket:
    """Bind the traffic port; the first worker that is ready listens on it."""
    listen = settings.traffic_listen
    try:
        return open_port(listen.host, listen.port)
    except OSError as error:
        raise BadSettings(
            f"traffic_listen: cannot bind {listen}: {error.strerror}; choose another address or port"
        ) from None


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of workers.

    The variables of the service manager are removed, because it expects notifications from the supervisor only.
    """
    return {name: value for name, value in own.items() if name not in _OF_SERVICE_MANAGER}
