"""The fleet of the front door: regions with Envoy and a picker or an agent at their entry, and name servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from adapters.servers.free_ports import LOOPBACK
from adapters.servers.process import ServerProcess
from lab.envoy_picker import envoy_process, picker_configuration
from lab.front_door.entries import ENTRIES, ENVOYS, NAME_SERVERS, bundle, topology
from lab.front_door.name_servers import power_dns
from lab.geoip import write_geoip
from lab.planet.bundle import write_bundle
from lab.planet.configs import FleetFiles, agent_identity_dir
from lab.planet.planet import READY_S, Launch, Planet, agent_process
from lab.planet.planet_ports import assign_ports
from lab.planet.topology import Region, agent_port, engine_port
from regional_agent.upstream.address import Address

_FRONT, _DNS = "front door", "name servers"


class FrontDoor:
    """The running fleet."""

    def __init__(self, planet: Planet, beside: dict[str, list[ServerProcess]]) -> None:
        self._planet = planet
        self._beside = beside
        """Envoy and the name server of each region."""

    @property
    def port(self) -> int:
        """The port of every entry."""
        return self._planet.ports[_FRONT]

    @property
    def dns_port(self) -> int:
        """The port of every name server."""
        return self._planet.ports[_DNS]

    def start(self) -> None:
        """Start all processes; returns when they are ready. Blocks."""
        self._planet.start()
        processes = [process for found in self._beside.values() for process in found]
        for process in processes:
            process.start()
        for process in processes:
            process.wait_ready(READY_S)

    def kill_region(self, region: str) -> float:
        """Kill all of a region with SIGKILL; return the monotonic time (s) of the first signal. Blocks."""
        at = time.monotonic()
        for process in self._beside.get(region, []):
            process.kill()
        self._planet.kill_region(region)
        return at

    def stop(self) -> None:
        """Stop all processes. Blocks."""
        for processes in self._beside.values():
            for process in processes:
                process.stop()
        self._planet.stop()


@asynccontextmanager
async def front_door(logs: Path) -> AsyncIterator[FrontDoor]:
    """Start the fleet; on exit every process has exited.

    Raises:
        ServerError: a program is missing, a port is in use, or a process does not become ready.
    """
    with TemporaryDirectory(prefix="penstock-front-door-") as name:
        directory, fleet = Path(name), topology()
        more = [_FRONT, _DNS, *(f"{region} {face}" for region in ENVOYS for face in ("picker", "envoy admin"))]
        ports = assign_ports([*fleet.port_names(), *more], None, Random())
        write_bundle(directory / "policy", bundle())
        write_geoip(directory / "sites.mmdb")
        environments = {
            agent_process(region.name, "a"): _settings(directory, region, ports) for region in fleet.regions
        }
        files = FleetFiles(directory, logs, directory / "policy", directory / "sites.mmdb")
        planet = Planet(fleet, ports, None, files, Launch(environments))
        running = FrontDoor(planet, {region: _beside(directory, fleet.region(region), ports) for region in ENVOYS})
        try:
            await asyncio.to_thread(running.start)
            yield running
        finally:
            await asyncio.shield(asyncio.to_thread(running.stop))


def _settings(directory: Path, region: Region, ports: dict[str, int]) -> dict[str, str]:
    settings = {}
    if region.name in ENVOYS:
        settings["PICKER_LISTEN"] = f"{LOOPBACK}:{ports[f'{region.name} picker']}"
        settings["PICKER_FORWARDS"] = "true"
    else:
        settings["TRAFFIC_LISTEN"] = f"{ENTRIES[region.name]}:{ports[_FRONT]}"
    if region.name in NAME_SERVERS:
        settings["DNS_SOCKET"] = str(directory / f"{region.name}.sock")
    return {f"PENSTOCK_AGENT_{name}": value for name, value in settings.items()}


def _beside(directory: Path, region: Region, ports: dict[str, int]) -> list[ServerProcess]:
    config = picker_configuration(
        Address(ENTRIES[region.name], ports[_FRONT]),
        ports[f"{region.name} envoy admin"],
        Address(LOOPBACK, ports[f"{region.name} picker"]),
        [ports[engine_port(region.name, engine.name)] for engine in region.engines],
        agent_identity_dir(directory, region.name, "a"),
        Address(LOOPBACK, ports[agent_port(region.name, "a", "traffic")]),
    )
    own = directory / f"{region.name}-pdns"
    server = power_dns(directory / f"{region.name}.sock", own, NAME_SERVERS[region.name], ports[_DNS], {})
    return [envoy_process(directory / f"{region.name}-envoy", config), server]
