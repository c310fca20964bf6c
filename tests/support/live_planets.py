"""Small fleets of real processes for end-to-end tests, and the requests of their clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from lab.geoip import SITES, write_geoip
from lab.planet.bundle import SHIPPED_BUNDLE, load_bundle, matrix_of
from lab.planet.configs import FleetFiles
from lab.planet.planet import Planet
from lab.planet.planet_ports import assign_ports
from lab.planet.topology import CHAT_8B, Topology

BETWEEN_S = 0.1
"""Time (s) between two requests of one client."""
KEY = {"authorization": "Bearer demo-eu-personal", "x-forwarded-for": SITES[0].address(Random(1))}
"""Headers of a client in Hamburg."""
BODY = {"model": CHAT_8B, "max_tokens": 4, "messages": [{"role": "user", "content": "Say yes."}]}


@asynccontextmanager
async def running(directory: Path, topology: Topology, bundle: Path = SHIPPED_BUNDLE) -> AsyncIterator[Planet]:
    """Run a planet with all processes, with the policy in `bundle`."""
    geoip = directory / "geoip.mmdb"
    write_geoip(geoip, topology.sites)
    ports = assign_ports(topology.port_names(), None, Random())
    files = FleetFiles(directory / "state", directory / "logs", bundle, geoip)
    planet = Planet(topology, ports, matrix_of(load_bundle()), files)
    try:
        await asyncio.to_thread(planet.start)
        yield planet
    finally:
        await asyncio.to_thread(planet.stop)
