"""One region of Penstock with all components of production: etcd, Redis, a control plane that plans, and agents."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from lab.bench.compiled import Build
from lab.bench.cores import pinned_to
from lab.geoip import write_geoip
from lab.planet.configs import (
    AGENTS_KEY_FILE,
    agent_environment,
    control_plane_environment,
    control_plane_urls,
    endpoints_file,
    url,
    write_json,
)
from lab.planet.planet import ask, program
from lab.planet.planet_ports import assign_ports
from lab.planet.secret_files import read_secret_line, write_secrets
from lab.planet.topology import (
    Engine,
    Region,
    Topology,
    agent_port,
    control_plane_port,
    engine_port,
    etcd_link,
    etcd_port,
)
from lab.servers.errors import NotReady
from lab.servers.etcd import EtcdServer
from lab.servers.process import ServerProcess
from lab.servers.readiness import http_ok
from lab.servers.redis import RedisServer

REGION, CITY = "eu-de", "Frankfurt"
"""The only region of the shipped policy bundle that is started."""

CONTROL_PLANE = "north"

READY_S = 45.0
STOP_GRACE_S = 3.0

SETTINGS = (
    "shipped policy bundle and a live plan from etcd; tenants by API key, residency by GeoIP of X-Forwarded-For",
    "in-flight counts shared through Redis, health probes, reports to the control plane, all metrics, and a line of the"
    " access log for every request",
)
"""Settings of the agents, for the report."""


class Site:
    """All processes except the endpoints, which are already running.

    Args:
        engines: the endpoints, as in the topology.
        engine_ports: ports of the endpoints, by name.
        agents: number of agents that serve the region.
        directory: directory for state, configuration and logs; must be empty.
        build: the build of the agents and the control plane, and their policy bundle.
        core: the only core that agents may use; None for any core.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        engine_ports: Mapping[str, int],
        *,
        agents: int,
        directory: Path,
        build: Build,
        core: int | None = None,
    ) -> None:
        names = tuple(f"agent-{number}" for number in range(1, agents + 1))
        self._region = Region(REGION, CITY, names, tuple(engines))
        self._topology = Topology((self._region,), (), (CONTROL_PLANE,), 1.0)
        self._ports = assign_ports(self._topology.port_names(), None, Random())
        self._ports |= {engine_port(REGION, name): port for name, port in engine_ports.items()}
        # There is no WAN, so agents connect to etcd directly.
        for member in self._topology.etcd_members:
            self._ports[etcd_link(REGION, member)] = self._ports[etcd_port(member, "client")]
        self._directory = directory
        self._core = core
        self._build = build
        self._write_files()
        self._servers: list[ServerProcess] = [*self._stores(), self._control_plane()]
        self.agents = [self._agent(name) for name in names]
        """The processes whose cost is measured."""
        self.traffic_ports = [self._ports[agent_port(REGION, name, "traffic")] for name in names]
        """Ports for clients, by agent."""

    def start(self) -> None:
        """Start all processes; returns when every agent has a traffic plan.

        Raises:
            ServerError: a program is missing or is not ready in time.
        """
        everything = [*self._servers, *self.agents]
        for process in everything:
            process.start()
        for process in everything:
            process.wait_ready(READY_S)
        self.wait_for_plans()

    def wait_for_plans(self) -> None:
        """Wait until every agent has a traffic plan; raises NotReady."""
        deadline = time.monotonic() + READY_S
        for name in self._region.agents:
            status = url(self._ports[agent_port(REGION, name, "admin")]) + "/status"
            key = read_secret_line(self._directory / AGENTS_KEY_FILE)
            while (ask(status, key) or {}).get("plan") is None:
                if time.monotonic() > deadline:
                    raise NotReady(f"{name} has no traffic plan after {READY_S:g} s; see {self._directory}")
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop all processes at the same time, gracefully and then by force."""
        everything = [*self._servers, *self.agents]
        with ThreadPoolExecutor(max_workers=len(everything)) as pool:
            list(pool.map(lambda process: process.stop(STOP_GRACE_S), everything))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write_files(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        write_secrets(self._directory, [(REGION, name) for name in self._region.agents], (CONTROL_PLANE,))
        write_geoip(self._geoip_file)
        write_json(self._directory / f"{REGION}-endpoints.yaml", endpoints_file(self._region, self._ports))

    @property
    def _geoip_file(self) -> Path:
        return self._directory / "clients.mmdb"

    def _stores(self) -> tuple[ServerProcess, ServerProcess]:
        ports = self._ports
        return (
            EtcdServer(self._directory / "etcd", client_port=ports["etcd client"], peer_port=ports["etcd peer"]),
            RedisServer(self._directory / "redis", port=ports["redis"]),
        )

    def _control_plane(self) -> ServerProcess:
        environment = control_plane_environment(
            self._topology, CONTROL_PLANE, self._ports, self._directory, self._build.bundle
        )
        where = control_plane_urls(self._topology, self._ports)[CONTROL_PLANE]
        return ServerProcess(
            "control plane",
            [program("penstock"), "serve"],
            log_path=self._directory / "control-plane.log",
            ready=http_ok(where + "/readyz"),
            ports=[self._ports[control_plane_port(CONTROL_PLANE)]],
            env={**os.environ, **environment, **self._build.environment()},
        )

    def _agent(self, name: str) -> ServerProcess:
        environment = agent_environment(
            self._topology, self._region, name, self._ports, self._directory, self._geoip_file, self._directory
        )
        argv = [program("penstock-agent")]
        return ServerProcess(
            name,
            argv if self._core is None else pinned_to(self._core, argv),
            log_path=self._directory / f"{name}.log",
            ready=http_ok(url(self._ports[agent_port(REGION, name, "admin")]) + "/readyz"),
            ports=[self._ports[agent_port(REGION, name, face)] for face in ("traffic", "peer", "admin")],
            env={**os.environ, **environment, **self._build.environment()},
        )
