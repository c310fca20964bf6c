"""The fleet of a run: its policy, its GeoIP database and its processes in a temporary directory."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from lab.demo.batches.batch_scene import JOB_CONCURRENCY, planned_batches
from lab.demo.inputs import DemoInputs
from lab.geoip import write_geoip
from lab.planet.bundle import job_store_file, usage_store_file, write_bundle
from lab.planet.configs import FleetFiles
from lab.planet.planet import Launch, Planet
from lab.planet.planet_ports import assign_ports

Environments = Callable[[Path], Mapping[str, Mapping[str, str]]]
"""Returns, by process, additional environment; the argument is the directory of the fleet."""


@asynccontextmanager
async def demo_fleet(
    inputs: DemoInputs,
    logs: Path,
    *,
    port_base: int | None = None,
    more_ports: Sequence[str] = (),
    environments: Environments | None = None,
) -> AsyncIterator[Planet]:
    """Prepare the fleet of `inputs`, which the caller starts. On exit every process has exited.

    Args:
        logs: directory of the logs, which is emptied.
        port_base: the first port; None searches for free ports.
        more_ports: names of ports beside those of the fleet.

    Raises:
        PortTaken: a port is in use.
    """
    shutil.rmtree(logs, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix="penstock-fleet-"))
    try:
        ports = assign_ports([*inputs.topology.port_names(), *more_ports], port_base, Random())
        quiet = inputs.topology.region_names[-1]
        store = usage_store_file(directory / "usage", quiet)
        with_jobs = [batch.region for batch in planned_batches(inputs.scenario, inputs.topology)]
        jobs = job_store_file(directory / "jobs", with_jobs, JOB_CONCURRENCY)
        write_bundle(directory / "policy", {**inputs.bundle, "usage-store.yaml": store, "job-stores.yaml": jobs})
        geoip_file = inputs.geoip_file or directory / "sites.mmdb"
        if inputs.geoip_file is None:
            write_geoip(geoip_file)
        files = FleetFiles(directory, logs, directory / "policy", geoip_file.resolve())
        planet = Planet(
            inputs.topology, ports, inputs.matrix, files, Launch(environments(directory) if environments else {})
        )
        try:
            yield planet
        finally:
            await asyncio.shield(asyncio.to_thread(planet.stop))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
