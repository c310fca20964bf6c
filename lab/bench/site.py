"""A fleet of Penstock with all components of production: etcd, Redis, a control plane that plans, and agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from adapters.servers.process import ServerProcess
from lab.bench.compiled import Build
from lab.geoip import write_geoip
from lab.planet.configs import FleetFiles
from lab.planet.planet import Launch, Planet, agent_process, control_plane_process
from lab.planet.planet_ports import assign_ports
from lab.planet.topology import Engine, Region, Topology, agent_port, engine_port
from lab.wan.matrix import RttMatrix

REGION, CITY = "eu-de", "Frankfurt"
"""The only region of the shipped policy bundle that is started."""

SETTINGS = (
    "shipped policy bundle and a live plan from etcd; tenants by API key, residency by GeoIP of X-Forwarded-For",
    "in-flight counts shared through Redis, health probes, reports to the control plane, all metrics, and a line of the"
    " access log for every request",
)
"""Settings of the agents, for the report."""


def make_site(
    engines: Sequence[Engine],
    engine_ports: Mapping[str, int],
    agents: int,
    directory: Path,
    build: Build,
    core: int | None = None,
) -> Planet:
    """Return a fleet of one region without a WAN, whose endpoints are already running; `with` starts it.

    Args:
        engines: the endpoints, as in the topology.
        engine_ports: ports of the endpoints, by name.
        agents: number of agents that serve the region.
        directory: directory for state, configuration and logs; must be empty.
        build: the build of the agents and the control plane, and their policy bundle.
        core: the only core that agents may use; None for any core.
    """
    names = tuple(f"agent-{number}" for number in range(1, agents + 1))
    return make_fleet((Region(REGION, CITY, names, tuple(engines)),), engine_ports, directory, build, None, core)


def make_fleet(
    regions: tuple[Region, ...],
    engine_ports: Mapping[str, int],
    directory: Path,
    build: Build,
    matrix: RttMatrix | None,
    core: int | None = None,
) -> Planet:
    """Return a fleet whose endpoints are already running; `with` starts it.

    Args:
        regions: its regions, whose engines have names that differ.
        engine_ports: ports of the endpoints, by name.
        directory: directory for state, configuration and logs; must be empty.
        build: the build of the agents and the control plane, and their policy bundle.
        matrix: round trips between the regions; None for no WAN.
        core: the only core that agents may use; None for any core.
    """
    topology = Topology(regions, (), ("north",), 1.0)
    ports = assign_ports(topology.port_names(), None, Random())
    ports |= {
        engine_port(region.name, engine.name): engine_ports[engine.name]
        for region in regions
        for engine in region.engines
    }
    directory.mkdir(parents=True, exist_ok=True)
    geoip_file = directory / "clients.mmdb"
    write_geoip(geoip_file)
    processes = [control_plane_process("north")]
    processes += [agent_process(region.name, agent) for region in regions for agent in region.agents]
    environments = dict.fromkeys(processes, build.environment())
    files = FleetFiles(directory, directory, build.bundle, geoip_file)
    return Planet(topology, ports, matrix, files, Launch(environments, core, runs_engines=False))


def agents_of(site: Planet) -> list[ServerProcess]:
    """Return the agents' processes."""
    return [site.processes()[agent_process(REGION, name)] for name in site.topology.region(REGION).agents]


def traffic_ports(site: Planet) -> list[int]:
    """Return the ports for clients, by agent."""
    return [site.ports[agent_port(REGION, name, "traffic")] for name in site.topology.region(REGION).agents]
