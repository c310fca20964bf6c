"""The supervisor with small programs in place of workers; tests/integration/test_workers.py has real ones."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from pathlib import Path
from random import Random

import pytest
import structlog

from adapters.configuration.settings_loader import BadSettings
from regional_agent.config.settings import AgentSettings
from regional_agent.upstream.address import Address
from regional_agent.workers import supervisor
from regional_agent.workers.supervisor import supervise
from regional_agent.workers.worker_settings import worker_settings
from tests.support.wait import until

BEGIN = """
import os, pathlib, signal, sys, time
number = sys.argv[sys.argv.index("--worker") + 1]
assert "NOTIFY_SOCKET" not in os.environ
os.fstat(int(sys.argv[sys.argv.index("--traffic-socket") + 1]))
here = pathlib.Path(sys.argv[1])
def note(text):
    with (here / number).open("a") as file:
        file.write(text + "\\n")
signal.signal(signal.SIGTERM, lambda *_: (note("drained"), sys.exit(0)))
note("started")
"""
# Short waits: the handler of a signal that comes just before a wait runs only after that wait.
SERVE = 'print(\'{"agent": "a"}\', flush=True)\nfor _ in range(1200): time.sleep(0.05)\n'


def settings(**changes: object) -> AgentSettings:
    return AgentSettings(
        **{
            "region": "eu-de",
            "name": "a",
            "workers": 2,
            "traffic_listen": "127.0.0.1:0",
            "peer_listen": "127.0.0.1:0",
            "admin_listen": "127.0.0.1:0",
            "etcd_endpoints": "127.0.0.1:1",
            "endpoints_file": "endpoints.yaml",
            "identity_dir": "identity",
            "state_dir": "state",
            "redis_url": "redis://127.0.0.1:1",
            **changes,
        }
    )


def program(directory: Path, code: str) -> list[str]:
    file = directory / "worker.py"
    file.write_text(BEGIN + code)
    return [sys.executable, "-S", str(file), str(directory)]


def notes(directory: Path, number: int) -> list[str]:
    file = directory / str(number)
    return file.read_text().splitlines() if file.exists() else []


async def test_a_worker_that_ends_is_started_again_and_all_drain_on_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "")
    fails_once = 'if number == "2" and len((here / "2").read_text().splitlines()) == 1: sys.exit(3)\n'
    running = asyncio.create_task(supervise(settings(), program(tmp_path, fails_once + SERVE), Random(1)))
    await until(lambda: '"supervisor"' in capsys.readouterr().out)
    assert (notes(tmp_path, 1), notes(tmp_path, 2)) == (["started"], ["started", "started"])
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert (notes(tmp_path, 1)[-1], notes(tmp_path, 2)[-1]) == ("drained", "drained")


async def test_a_worker_may_take_the_time_that_it_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drains_slowly = """
def stop(*_):
    print('{"stopping": "a", "within_s": 60}', flush=True)
    time.sleep(0.5)
    note("drained slowly")
    sys.exit(0)
signal.signal(signal.SIGTERM, (lambda *_: time.sleep(60)) if number == "2" else stop)
"""
    monkeypatch.setattr(supervisor, "STOP_ANNOUNCEMENT_S", 5.0)
    running = asyncio.create_task(supervise(settings(), program(tmp_path, drains_slowly + SERVE), Random(1)))
    await until(lambda: '"supervisor"' in capsys.readouterr().out)
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert notes(tmp_path, 1)[-1] == "drained slowly"
    assert notes(tmp_path, 2) == ["started"], "killed, because it reports nothing"


async def test_the_watchdog_is_fed_until_the_workers_have_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, received = asyncio.get_running_loop(), list[str]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "manager"))
        manager.setblocking(False)
        loop.add_reader(manager, lambda: received.append(manager.recv(4096).decode()))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "manager"))
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        drains_when_told = """
def stop(*_):
    print('{"stopping": "a", "within_s": 60}', flush=True)
    for _ in range(6000):
        if (here / "go").exists(): break
        time.sleep(0.01)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
"""
        running = asyncio.create_task(supervise(settings(), program(tmp_path, drains_when_told + SERVE), Random(1)))
        await until(lambda: "READY=1" in received)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: "STOPPING=1\nEXTEND_TIMEOUT_USEC=60000000" in received)
        received.clear()
        await until(lambda: received.count("WATCHDOG=1") >= 3)
        (tmp_path / "go").touch()
        await running
        loop.remove_reader(manager)


async def test_a_worker_that_rejects_its_settings_ends_all(tmp_path: Path) -> None:
    wait_for_the_other = (
        'while number == "2" and not ((here / "1").exists() and (here / "1").read_text()): time.sleep(0.01)\n'
    )
    command = program(tmp_path, wait_for_the_other + 'if number == "2": sys.exit(2)\n' + SERVE)
    with pytest.raises(BadSettings, match="worker 2 does not start; its message is above"):
        await supervise(settings(), command, Random(1))
    assert notes(tmp_path, 1) == ["started", "drained"]


class LongestWaits(Random):
    """Makes each wait before a restart longer than any test."""

    def uniform(self, a: float, b: float) -> float:
        return 3600.0


async def test_sigterm_ends_workers_that_all_wait_for_a_restart(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logged:
        running = asyncio.create_task(supervise(settings(), program(tmp_path, "sys.exit(3)"), LongestWaits()))
        await until(lambda: sum(entry["event"].startswith("worker ended") for entry in logged) == 2)
        os.kill(os.getpid(), signal.SIGTERM)
        await running
    assert logged[-1]["event"] == "stopped"


async def test_a_worker_that_cannot_be_started_is_started_later(tmp_path: Path) -> None:
    interpreter, away = tmp_path / "interpreter", tmp_path / "away"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    removes_interpreter_once = """
if number == "2" and len((here / "2").read_text().splitlines()) == 1:
    while not ((here / "1").exists() and (here / "1").read_text()): time.sleep(0.01)
    (here / "interpreter").rename(here / "away")
    sys.exit(3)
"""
    command = [str(interpreter), *program(tmp_path, removes_interpreter_once + SERVE)[1:]]
    with structlog.testing.capture_logs() as logged:
        running = asyncio.create_task(supervise(settings(), command, Random(1)))
        await until(lambda: running.done() or any("error" in entry for entry in logged))
        away.rename(interpreter)
        await until(lambda: running.done() or notes(tmp_path, 2) == ["started", "started"])
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert (notes(tmp_path, 1), notes(tmp_path, 2)[-1]) == (["started", "drained"], "drained")


async def test_a_long_line_of_a_worker_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = asyncio.create_task(supervise(settings(), program(tmp_path, "print('x' * 200_000)\n" + SERVE), Random(1)))
    await until(lambda: running.done() or '"supervisor"' in capsys.readouterr().out)
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert notes(tmp_path, 1) == ["started", "drained"]


def test_each_worker_has_a_name_files_and_ports_of_its_own() -> None:
    host = settings(
        peer_listen="0.0.0.0:8100",
        admin_listen="127.0.0.1:8200",
        advertise_peer_url="https://[::1]:8100",
        advertise_admin_url="https://a.example.com:8200",
        access_log_file="/var/log/access.log",
    )
    second = worker_settings(host, 2)
    assert (second.name, second.workers) == ("a-2", 1)
    assert (second.identity_dir, second.state_dir) == (Path("identity/a-2"), Path("state/a-2"))
    assert (second.peer_listen, second.admin_listen) == (Address("0.0.0.0", 8101), Address("127.0.0.1", 8201))
    assert second.advertise_peer_url == "https://[::1]:8101"
    assert second.advertise_admin_url == "https://a.example.com:8201"
    assert second.access_log_file == Path("/var/log/access-a-2.log")
    assert worker_settings(settings(), 2).peer_listen.port == 0


def test_workers_behind_a_gateway_share_its_port_and_have_names_of_their_own() -> None:
    host = settings(advertise_peer_url="https://gateway:443", advertise_peer_server_name="eu-de-1.agents.example")
    second = worker_settings(host, 2)
    assert second.advertise_peer_url == "https://gateway:443"
    assert second.advertise_peer_server_name == "eu-de-1-2.agents.example"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"redis_url": None}, "{redis_url}: not set, but required by {workers}"),
        (
            {"peer_listen": "127.0.0.1:8100", "admin_listen": "127.0.0.1:8101"},
            "{admin_listen}: port 8101 of a worker is one of {peer_listen} too; leave 2 ports",
        ),
        ({"name": "a" * 62}, "is no name"),
        ({"workers": 65}, "less than or equal to 64"),
    ],
)
def test_settings_without_room_for_the_workers_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        settings(**changes)
