"""Starts, kills, restarts and stops the processes of a fleet. No process outlives its starter.

Every method blocks; from asyncio, call it with `await asyncio.to_thread(...)`.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from adapters.servers.errors import NotReady
from adapters.servers.etcd import EtcdServer
from adapters.servers.process import ServerProcess, find_script
from adapters.servers.readiness import http_ok
from adapters.servers.redis import RedisServer
from lab.bench.cores import pinned_to
from lab.planet.configs import (
    ADMIN_TOKEN_FILE,
    AGENTS_KEY_FILE,
    FleetFiles,
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
from lab.planet.topology import FACES, Region, Topology, agent_port, control_plane_port, engine_port, etcd_port
from lab.wan.matrix import RttMatrix

READY_S = 120.0
"""Maximum time (s) from the start of a process until it is ready, on a busy machine."""

STOP_GRACE_S = 3.0

ASK_TIMEOUT_S = 3.0

Progress = Callable[[str], None]
"""Progress callback: receives a short description of each completed step of a start."""


class Launch(NamedTuple):
    """How the processes of a fleet start."""

    environments: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """By process: additional environment."""
    agent_core: int | None = None
    """The only core that agents may use; None for any core."""
    runs_engines: bool = True
    """Whether the fleet starts its engines; otherwise they run already."""


class Planet:
    """All processes of a topology.

    Args:
        topology: the regions, engines, agents and control planes.
        ports: ports by the names of `Topology.port_names`.
        matrix: round trips between regions; None connects all processes without a WAN.
        files: the directories and files.
        launch: how the processes start.
    """

    def __init__(
        self,
        topology: Topology,
        ports: Ports,
        matrix: RttMatrix | None,
        files: FleetFiles,
        launch: Launch | None = None,
    ) -> None:
        self.topology = topology
        direct = {link.name: ports[link.target_port] for link in topology.links()} if matrix is None else {}
        self.ports = {**ports, **direct}
        self.directory, self.logs, self.policy_dir, _ = self._files = files
        self._has_wan = matrix is not None
        self.witness_dir = self.directory / "witness"
        self._launch = launch or Launch()
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

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kill_region(self, region: str) -> float:
        """Kill a region's agents and engines with SIGKILL; return the monotonic time (s) of the first signal."""
        return self.kill([*self._agents(region), *self._engines(region)])

    def start_region(self, region: str) -> None:
        """Start a killed region with the same ports and state; return when its processes are ready."""
        self.restart([*self._engines(region), *self._agents(region)])

    def restart_killed(self) -> None:
        """Start every process that is not running."""
        self.restart([name for name, process in self._processes.items() if not process.alive])

    def restart(self, names: Iterable[str]) -> None:
        """Start killed processes with the same ports and state; return when they are ready."""
        names = list(names)
        for name in names:
            self._start_one(name)
        self._wait_ready(names, lambda _: None)

    def kill(self, names: Iterable[str]) -> float:
        """Kill processes with SIGKILL; return the monotonic time (s) of the first signal."""
        names = list(names)
        self._expected_down.update(names)
        at = time.monotonic()
        for name in names:
            self._processes[name].kill()
        return at

    def wait_for_leader(self, within_s: float, other_than: str | None = None) -> str | None:
        """Return the control plane that reports that it leads; None if none does so within a time (s).

        Args:
            other_than: a control plane that does not count.
        """
        until = time.monotonic() + within_s
        while True:
            for name, where in control_plane_urls(self.topology, self.ports).items():
                if name != other_than and (ask(where + "/v1/status", self.admin_token) or {}).get("leading"):
                    return name
            if time.monotonic() > until:
                return None
            time.sleep(0.1)

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

    def processes(self) -> dict[str, ServerProcess]:
        """Return every process by name."""
        return dict(self._processes)

    def _start_one(self, name: str) -> None:
        with self._starting:
            if self._stopping:
                raise NotReady(f"the fleet is stopping; {name} was not started")
            self._processes[name].start()
            self._expected_down.discard(name)

    def _wait_ready(self, names: Iterable[str], progress: Progress) -> None:
        names = list(names)
        started = [self._processes[name] for name in names]
        for name in names:
            self._processes[name].wait_ready(READY_S, needs=started)
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
        return [agent_process(region, agent) for agent in self.topology.region(region).agents]

    def _engines(self, region: str) -> list[str]:
        return [f"engines {region}"] if self._launch.runs_engines else []

    def _write_files(self, matrix: RttMatrix | None) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        agents = [(region.name, agent) for region in self.topology.regions for agent in region.agents]
        write_secrets(self.directory, agents, self.topology.control_planes)
        if matrix is not None:
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
        lab = find_script("penstock-lab")
        for region in topology.regions if self._launch.runs_engines else ():
            engines = [ports[engine_port(region.name, engine.name)] for engine in region.engines]
            command = [lab, "engines", "--config", str(self.directory / f"{region.name}-engines.yaml")]
            self._add(self._engines(region.name)[0], command, [f"{url(port)}/health" for port in engines], engines)
        if self._has_wan:
            links = [ports["wan control"], *(ports[link.name] for link in topology.links())]
            command = [lab, "wan", "--config", str(self.directory / "wan.json")]
            self._add("wan", command, [f"{url(links[0])}/links"], links)
        for name in topology.control_planes:
            port = ports[control_plane_port(name)]
            environment = control_plane_environment(topology, name, ports, self._files)
            command = [find_script("penstock"), "serve"]
            self._add(control_plane_process(name), command, [f"{url(port)}/readyz"], [port], environment)
        core, command = self._launch.agent_core, [find_script("penstock-agent")]
        command = command if core is None else pinned_to(core, command)
        for region in topology.regions:
            for agent in region.agents:
                environment = agent_environment(topology, region, agent, ports, self._files)
                faces = [ports[agent_port(region.name, agent, face)] for face in FACES]
                self._add(agent_process(region.name, agent), command, [f"{url(faces[2])}/readyz"], faces, environment)

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
            env={**os.environ, **(environment or {}), **self._launch.environments.get(name, {})},
        )


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


def agent_process(region: str, agent: str) -> str:
    """Return the name of an agent's process."""
    return f"agent {region}/{agent}"


def control_plane_process(name: str) -> str:
    """Return the name of a control plane's process."""
    return f"control plane {name}"
