"""Notifies systemd of readiness, shutdown and a live event loop: sd_notify(3), without its library.

Only a task of the event loop feeds the watchdog. Load delays the task by one turn of the loop, which takes
milliseconds. Failures of engines, peers, Redis and etcd, and a missing policy, do not delay the task: a restart would
repair none of them and would cut every stream. Only a process whose event loop does not turn for at least half of the
unit's WatchdogSec is restarted. With the 60 s of the units in deploy/systemd, that is 30 s to 60 s: load balancers and
other regions avoid a hung agent after less than a second, so a fast restart gains little, and an unnecessary restart
costs every request in progress.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping

import structlog

SEND_TIMEOUT_S = 5.0
"""Maximum time (s) that a notification waits for room in the queue of the service manager's socket."""

_log = structlog.get_logger(__name__)


class ServiceManager:
    """The service manager that started this process; without a service manager, notifications do nothing.

    A notification that cannot be sent is logged and never raises: the service manager then applies its own time limits.

    Args:
        address: path of the manager's datagram socket, with a leading `@` for an abstract socket; None: there is no
            service manager.
        watchdog_s: time (s) without `WATCHDOG=1` after which the manager restarts this process; None: no watchdog.
    """

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> ServiceManager:
        """Return the service manager that the environment names, `os.environ` by default."""
        environment = os.environ if environment is None else environment
        address = environment.get("NOTIFY_SOCKET") or None
        if address is not None and address[0] not in "@/":
            _log.warning("NOTIFY_SOCKET ignored: neither a path nor an abstract socket", address=address)
            address = None
        return cls(address, _watchdog_s(environment))

    async def ready(self) -> None:
        """Report that every listener is open. Readiness for clients, which may change, is /readyz."""
        await self._send("READY=1")

    async def stopping(self, within_s: float = 0.0) -> None:
        """Report that shutdown has begun.

        Args:
            within_s: time (s) that the shutdown may take; a stop timeout of the unit that is shorter is extended.
        """
        await self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(within_s * 1e6)}" if within_s else "STOPPING=1")

    async def keep_watchdog(self) -> None:
        """Feed the watchdog at half of its time limit until cancelled; returns immediately if there is no watchdog."""
        if self._address is None or self._watchdog_s is None:
            return
        while True:
            await self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 2)

    async def _send(self, state: str) -> None:
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
                datagrams.setblocking(False)
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await asyncio.get_running_loop().sock_connect(datagrams, address)
                    await asyncio.get_running_loop().sock_sendall(datagrams, state.encode())
        except OSError as error:
            reason = error.strerror or f"no room in its queue for {SEND_TIMEOUT_S:g} s"
            _log.warning("cannot notify the service manager", state=state, address=self._address, reason=reason)


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Return the time limit (s) of the watchdog in the environment; None if missing, invalid or for another process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = environment.get("WATCHDOG_USEC", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        _log.warning("WATCHDOG_USEC ignored: not a number of microseconds", value=text)
        return None
    return int(text) / 1e6
