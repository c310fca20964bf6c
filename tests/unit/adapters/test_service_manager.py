"""Notifications of the service manager, on real datagram sockets."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pytest
import uvloop

from adapters.service_manager import ServiceManager
from tests.support.wait import PATIENCE_S


@contextmanager
def notify_socket(address: str) -> Iterator[socket.socket]:
    """A socket like the one on which systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind("\0" + address[1:] if address.startswith("@") else address)
        datagrams.settimeout(PATIENCE_S)
        yield datagrams


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    # Not in `tmp_path`, whose length may exceed the 107 bytes of a Unix socket address.
    with TemporaryDirectory(prefix="p") as directory:
        yield f"{directory}/notify" if request.param == "path" else f"@{directory}/notify"


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_it_receives_readiness_shutdown_and_the_watchdog(address: str, new_loop: object) -> None:
    async def run() -> None:
        manager = ServiceManager.from_environment(
            {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid())}
        )
        await manager.ready()
        feeding = asyncio.create_task(manager.keep_watchdog())
        received = [await asyncio.to_thread(systemd.recv, 64) for _ in range(3)]
        assert received == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        feeding.cancel()
        await asyncio.wait({feeding})
        rest = asyncio.create_task(asyncio.to_thread(lambda: set(iter(lambda: systemd.recv(64), b"STOPPING=1"))))
        await manager.stopping()
        assert await rest <= {b"WATCHDOG=1"}

    with notify_socket(address) as systemd, asyncio.Runner(loop_factory=new_loop) as runner:  # type: ignore[arg-type]
        runner.run(run())


def test_a_blocked_event_loop_sends_no_watchdog_notification(address: str) -> None:
    blocked, release = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        release.wait(PATIENCE_S)

    async def run() -> None:
        asyncio.get_running_loop().call_later(0.01, block)
        feeding = asyncio.create_task(ServiceManager(address, watchdog_s=0.002).keep_watchdog())
        while not stop.is_set():  # noqa: ASYNC110 (set by another thread)
            await asyncio.sleep(0.001)
        feeding.cancel()

    stop = threading.Event()
    with notify_socket(address) as systemd:
        loop = threading.Thread(target=asyncio.run, args=(run(),))
        loop.start()
        assert systemd.recv(64) == b"WATCHDOG=1"
        assert blocked.wait(PATIENCE_S)
        while select.select([systemd], [], [], 0)[0]:
            systemd.recv(64)
        systemd.settimeout(0.1)
        with pytest.raises(TimeoutError):
            systemd.recv(64)
        release.set()
        systemd.settimeout(PATIENCE_S)
        assert systemd.recv(64) == b"WATCHDOG=1"
        stop.set()
        loop.join()


@pytest.mark.parametrize(
    "environment",
    [{}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": "/nonexistent/notify"}],
)
async def test_without_a_service_manager_nothing_fails(environment: dict[str, str]) -> None:
    manager = ServiceManager.from_environment(environment)
    await manager.ready()
    await manager.stopping()


@pytest.mark.parametrize(
    "environment", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}]
)
async def test_only_a_watchdog_of_this_process_is_notified(environment: dict[str, str], address: str) -> None:
    with notify_socket(address):
        await ServiceManager.from_environment({"NOTIFY_SOCKET": address, **environment}).keep_watchdog()
