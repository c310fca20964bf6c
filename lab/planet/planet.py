"""Starts, kills, restarts and stops the processes of a fleet. No process outlives its starter.

Every method blocks; from asyncio, call it with `await asyncio.to_thread(...)`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

from lab.planet.configs import (
    ADMIN_TOKEN_FILE,
    AGENTS_KEY_FILE,
    Ports,
    agent_environment,
    control_plane_environment,
    control_plane_urls,
    endpoints_file,
    engines_file,
    url,
    wan_file,
    write_json,
)
from lab.planet.secret_files import read_secret_line, write_secrets
from lab.planet.topology import Region, Topology, agent_port, control_plane_port, engine_port, etcd_port
from lab.servers.errors import MissingBinary, NotReady
from lab.servers.etcd import EtcdServer
from lab.servers.process import ServerProcess
from lab.servers.readiness import http_ok
from lab.servers.redis import RedisServer
from lab.wan.matrix import RttMatrix

READY_S = 45.0
"""Maximum time (s) from the start of a process until it is ready, on a busy machine."""

STOP_GRACE_S = 3.0

ASK_TIMEOUT_S = 3.0

Progress = Callable[[str], None]
"""Progress callback: receives a short description of each completed step of a start."""


class Planet:
    """All processes of a topology.

    Args:
        topology: the regions, engines, agents and control planes.
        ports: the result of `assign_ports` for `Topology.port_names`.
        matrix: round trips between regions.
        directory: empty directory for state and configuration files.
        logs: directory of the processes' logs.
        policy_dir: directory of the bundle that the control planes publish.
        geoip_file: the database with which agents locate clients.
        clocks: by process, the environment that makes its clock adjustable.
    """

    def __init__(
        self,
        topology: Topology,
        ports: Ports,
        matrix: RttMatrix,
        *,
        directory: Path,
        logs: Path,
        policy_dir: Path,
        geoip_file: Path,
        clocks: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        self.topology = topology
        self.ports = ports
        self.witness_dir = directory / "witness"
        self.directory = directory
        self.logs = logs
        self.policy_dir = policy_dir
        self._geoip_file = geoip_file
        self._clocks = clocks
        self._processes: dict[str, ServerProcess] = {}
        self._expected_down: set[str] = set()
        self._stopping = False
        self._starting = Lock()
        """Held while a process starts, so that `stop` in another thread stops it too."""
        self._write_files(matrix)
        self._make_processes()

    def start(self, progress: Progress = lambda _: None) -> None:
        """Start every process, and wait until all are ready and every agent has a plan.

        Raises:
            ServerError: a program is missing, a port is in use, or a process does not become ready within READY_S.
        """
        for name in self._processes:
            self._start_one(name)
            progress(f"{name} started")
        self._wait_ready(self._processes, progress)
        self._wait_for_plans(self.topology.regions, progress)

    def stop(self) -> None:
        """Stop every process with SIGTERM, after STOP_GRACE_S with SIGKILL; return when all have exited."""
        with self._starting:
            self._stopping = True
        alive = [process for process in self._processes.values() if process.alive]
        self._expected_down.update(self._processes)
        with ThreadPoolExecutor(max_workers=max(1, len(alive))) as pool:
            list(pool.map(lambda process: process.stop(STOP_GRACE_S), alive))

    def kill_region(self, region: str) -> float:
        """Kill a region's agents and engines with SIGKILL; return the monotonic time (s) of the first signal."""
        return self._kill([*self._agents(region), _engines(region)])

    def start_region(self, region: str) -> None:
        """Start a killed region with the same ports and state; return when its processes are ready."""
        self.restart([_engines(region), *self._agents(region)])

    def restart_killed(self) -> None:
        """Start every process that is not running."""
        self.restart([name for name, process in self._processes.items() if not process.alive])

    def restart(self, names: Iterable[str]) -> None:
        """Start killed processes with the same ports and state; return when they are ready."""
        names = list(names)
        for name in names:
            self._start_one(name)
        self._wait_ready(names, lambda _: None)

    def kill_control_plane(self, name: str) -> float:
        """Kill a control plane with SIGKILL; return the monotonic time (s) of the signal."""
        return self._kill([_control_plane(name)])

    def kill_etcd(self, members: Iterable[str] = ("etcd",)) -> float:
        """Kill members of etcd with SIGKILL; return the monotonic time (s) of the first signal."""
        return self._kill(members)

    def kill_agents(self, region: str, agents: Iterable[str]) -> float:
        """Kill agents of a region with SIGKILL; return the monotonic time (s) of the first signal."""
        return self._kill([_agent(region, agent) for agent in agents])

    def kill_redis(self) -> float:
        """Kill Redis with SIGKILL; return the monotonic time (s) of the signal."""
        return self._kill(["redis"])

    def leading_control_plane(self) -> str | None:
        """Return the name of the control plane that reports that it leads; None without a leader."""
        for name, where in control_plane_urls(self.topology, self.ports).items():
            status = ask(where + "/v1/status", self.admin_token)
            if status is not None and status.get("leading"):
                return name
        return None

    @property
    def admin_token(self) -> str:
        """The admin token of the control planes."""
        return read_secret_line(self.directory / ADMIN_TOKEN_FILE)

    @property
    def agents_key(self) -> str:
        """The API key of the agents' admin listeners."""
        return read_secret_line(self.directory / AGENTS_KEY_FILE)

    def admin_urls(self) -> dict[str, str]:
        """Return the admin URL of each agent by region/agent."""
        return {
            f"{region.name}/{agent}": url(self.ports[agent_port(region.name, agent, "admin")])
            for region in self.topology.regions
            for agent in region.agents
        }

    def unexpected_exits(self) -> list[str]:
        """Return the unexpected exits since the last call, each with exit code and last log line."""
        found = []
        for name, process in self._processes.items():
            if name not in self._expected_down and not process.alive:
                self._expected_down.add(name)
                last = process.log_tail(1).strip()
                found.append(f"{name} (code {process.returncode}): {last or 'its log is empty'}")
        return found

    def log_path(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self._processes[name].log_path

    def processes(self) -> dict[str, ServerProcess]:
        """Return every process by name."""
        return dict(self._processes)

    def _start_one(self, name: str) -> None:
        with self._starting:
            if self._stopping:
                raise NotReady(f"the fleet is stopping; {name} was not started")
            self._processes[name].start()
            self._expected_down.discard(name)

    def _kill(self, names: Iterable[str]) -> float:
        names = list(names)
        self._expected_down.update(names)
        at = time.monotonic()
        for name in names:
            self._processes[name].kill()
        return at

    def _wait_ready(self, names: Iterable[str], progress: Progress) -> None:
        for name in names:
            self._processes[name].wait_ready(READY_S)
            progress(f"{name} is ready")

    def _wait_for_plans(self, regions: Iterable[Region], progress: Progress) -> None:
        deadline = time.monotonic() + READY_S
        for name, admin in self.admin_urls().items():
            while (ask(admin + "/status", self.agents_key) or {}).get("plan") is None:
                if time.monotonic() > deadline:
                    raise NotReady(f"{name} has no traffic plan after {READY_S:g} s; see {self.logs}")
                time.sleep(0.05)
            progress(f"{name} has a plan")

    def _agents(self, region: str) -> list[str]:
        return [_agent(region, agent) for agent in self.topology.region(region).agents]

    def _write_files(self, matrix: RttMatrix) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        agents = [(region.name, agent) for region in self.topology.regions for agent in region.agents]
        write_secrets(self.directory, agents, self.topology.control_planes)
        write_json(self.directory / "wan.json", wan_file(self.topology, self.ports, matrix))
        for region in self.topology.regions:
            engines = engines_file(self.topology, region, self.ports, self.witness_dir)
            write_json(self.directory / f"{region.name}-engines.yaml", engines)
            write_json(self.directory / f"{region.name}-endpoints.yaml", endpoints_file(region, self.ports))

    def _make_processes(self) -> None:
        """Create the processes in start order; each process waits for its dependencies."""
        ports, topology = self.ports, self.topology
        members = topology.etcd_members
        peers = {member: url(ports[etcd_port(member, "peer")]) for member in members} if len(members) > 1 else None
        servers: dict[str, ServerProcess] = {
            member: EtcdServer(
                self.directory / member,
                client_port=ports[etcd_port(member, "client")],
                peer_port=ports[etcd_port(member, "peer")],
                name=member,
                peers=peers,
            )
            for member in members
        }
        servers["redis"] = RedisServer(self.directory / "redis", port=ports["redis"])
        for name, server in servers.items():
            server.log_path = self.logs / f"{name}.log"
            self._processes[name] = server
        lab = program("penstock-lab")
        for region in topology.regions:
            engines = [ports[engine_port(region.name, engine.name)] for engine in region.engines]
            command = [lab, "engines", "--config", str(self.directory / f"{region.name}-engines.yaml")]
            self._add(_engines(region.name), command, [f"{url(port)}/health" for port in engines], engines)
        for name in topology.control_planes:
            port = ports[control_plane_port(name)]
            environment = control_plane_environment(
                topology, name, ports, self.directory, self.policy_dir, self._geoip_file
            )
            command = [program("penstock"), "serve"]
            self._add(_control_plane(name), command, [f"{url(port)}/readyz"], [port], environment)
        for region in topology.regions:
            for agent in region.agents:
                environment = agent_environment(
                    topology, region, agent, ports, self.directory, self._geoip_file, self.logs
                )
                faces = [ports[agent_port(region.name, agent, face)] for face in ("traffic", "peer", "admin")]
                ready = [f"{url(faces[2])}/readyz"]
                self._add(_agent(region.name, agent), [program("penstock-agent")], ready, faces, environment)
        links = [ports["wan control"], *(ports[link.name] for link in topology.links())]
        command = [lab, "wan", "--config", str(self.directory / "wan.json")]
        self._add("wan", command, [f"{url(links[0])}/links"], links)

    def _add(
        self, name: str, argv: list[str], ready: list[str], ports: list[int], environment: dict[str, str] | None = None
    ) -> None:
        checks = [http_ok(where) for where in ready]
        self._processes[name] = ServerProcess(
            name,
            argv,
            log_path=self.logs / f"{name.replace(' ', '-').replace('/', '-')}.log",
            ready=lambda: all(check() for check in checks),
            ports=ports,
            env={**os.environ, **(environment or {}), **self._clocks.get(name, {})},
        )


def program(name: str) -> str:
    """Return the path of a Penstock program: in the directory of the interpreter, else on PATH.

    Raises:
        MissingBinary: the program is in neither location.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise MissingBinary(f"{name} not found beside {sys.executable} or on PATH; install penstock")
    return found


def ask(address: str, token: str = "") -> dict[str, Any] | None:
    """Send a GET; return the JSON object of the response, or None on an error or after ASK_TIMEOUT_S.

    Args:
        token: bearer token; empty sends none.
    """
    request = urllib.request.Request(address, headers={"authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=ASK_TIMEOUT_S) as answer:
            content = json.load(answer)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _engines(region: str) -> str:
    return f"engines {region}"


def _agent(region: str, agent: str) -> str:
    return f"agent {region}/{agent}"


def _control_plane(name: str) -> str:
    return f"control plane {name}"
