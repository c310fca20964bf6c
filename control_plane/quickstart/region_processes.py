"""Runs the processes of a quickstart: etcd, Valkey, a control plane and an agent."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from adapters.servers.errors import NotReady, ServerError
from adapters.servers.etcd import EtcdAccess, EtcdServer, EtcdSettings
from adapters.servers.free_ports import LOOPBACK
from adapters.servers.process import ServerProcess, find_script
from adapters.servers.readiness import http_ok
from adapters.servers.redis import RedisServer
from control_plane.quickstart.region_dir import RegionDir

READY_S = 60.0
"""Maximum time (s) until a process is ready."""

PATIENCE_S = 3.0
"""Time (s) that an agent usually takes to become ready."""

POLL_S = 0.1

STOP_S = 15.0
"""Time (s) for a process to complete its requests and stop."""


@contextmanager
def running(region_dir: RegionDir, starting: Callable[[str], None]) -> Iterator[list[ServerProcess]]:
    """Start the processes, each when the one before it is ready; stop them in reverse order.

    Args:
        starting: called with the name of each process before it starts.

    Raises:
        ServerError: a process cannot be started; the message ends with the last lines of its log.
    """
    started: list[ServerProcess] = []
    with ExitStack() as stack:
        for server in _servers(region_dir):
            starting(server.name)
            server.start()
            stack.callback(server.stop, STOP_S)
            server.wait_ready(READY_S)
            started.append(server)
        yield started


def wait_served(
    region_dir: RegionDir, model: str, servers: list[ServerProcess], waiting: Callable[[str], None]
) -> None:
    """Wait until the agent is ready and lists a model; a region that joined has no key to ask with.

    The wait for readiness has no end, because engines may start later.

    Args:
        waiting: called with why the agent is not ready, when that lasts.

    Raises:
        NotReady: the model is not listed within READY_S after the agent is ready.
        ServerError: a process has ended.
    """
    told, begun = "", time.monotonic()
    while reason := _not_ready_reason(region_dir.ports["admin"]):
        error = ended(servers)
        if error is not None:
            raise error
        if reason != told and time.monotonic() > begun + PATIENCE_S:
            waiting(reason)
            told = reason
        time.sleep(POLL_S)
    if not region_dir.has_control_plane:
        return
    key = region_dir.read_api_key()
    until = time.monotonic() + READY_S
    while model not in _listed(region_dir.ports["traffic"], key):
        if time.monotonic() > until:
            raise NotReady(
                f"the agent does not serve {model} after {READY_S:g} s; see {region_dir.path}/logs/agent.log"
            )
        time.sleep(POLL_S)


def ended(servers: list[ServerProcess]) -> ServerError | None:
    """Return the error of a process that has ended; None while all run."""
    for server in servers:
        if not server.alive:
            return ServerError(
                f"{server.name} ended with code {server.returncode}; end of {server.log_path}:\n{server.log_tail()}"
            )
    return None


def _servers(region_dir: RegionDir) -> Iterator[ServerProcess]:
    path, ports = region_dir.path, region_dir.ports
    logs = path / "logs"
    yield RedisServer(path / "valkey", port=ports["redis"])
    if region_dir.has_control_plane:
        access = None
        if region_dir.host != LOOPBACK:
            access = EtcdAccess(region_dir.host, region_dir.etcd_identity, ports["etcd health"])
        settings = EtcdSettings(durable=True, access=access)
        yield EtcdServer(path / "etcd", client_port=ports["etcd"], peer_port=ports["etcd peers"], settings=settings)
        yield ServerProcess(
            "control plane",
            [find_script("penstock"), "serve", "--config", str(region_dir.control_plane_settings)],
            log_path=logs / "control-plane.log",
            ready=http_ok(f"{region_dir.api_url}/readyz"),
            ports=(ports["api"],),
        )
    yield ServerProcess(
        "agent",
        [find_script("penstock-agent"), "--config", str(region_dir.agent_settings)],
        log_path=logs / "agent.log",
        ready=http_ok(f"http://{LOOPBACK}:{ports['admin']}/livez"),
        ports=(ports["traffic"], ports["peers"], ports["admin"]),
    )


def _not_ready_reason(port: int) -> str:
    """Return why the agent is not ready, by its admin listener; empty when it is ready."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5.0)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        content = response.read(1024).decode(errors="replace").strip()
        return "" if response.status == 200 else content.removeprefix("not ready: ")
    except (OSError, http.client.HTTPException):
        return "it does not answer"
    finally:
        connection.close()


def _listed(port: int, key: str) -> set[str]:
    """Return the names of the models that the agent lists; none while it does not answer."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5.0)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        return {str(model["id"]) for model in json.loads(connection.getresponse().read())["data"]}
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return set()
    finally:
        connection.close()
