"""Contests over three regions: clients of each region enter there, as geo DNS directs them, and demand is unequal.

Penstock has one agent in each region, and a WAN with the round trips of the shipped policy between them. SkyWalker's
rule has one router for all regions. Any other system has one router in each region, in front of the region's engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final

import msgspec

from lab.bench.compiled import Build
from lab.bench.outside.driver import Assignment, Driver, DriverRun
from lab.bench.outside.skywalker import SkyWalkerPeer, running_skywalker
from lab.bench.peers.peer import Peer
from lab.bench.peers.running import start_peer
from lab.bench.site import make_fleet
from lab.planet.bundle import demo_bundle, load_bundle, matrix_of, write_bundle
from lab.planet.configs import url
from lab.planet.topology import Engine, Region, agent_port
from lab.quantile import quantile

SHARES: Final = {"eu-de": 0.6, "eu-es": 0.25, "us-east": 0.15}
"""Share of the demand by the region where it enters; all regions have the same engines."""

AGENT: Final = "agent-1"

PARTS: Final = {"p50": 0.5, "p99": 0.99}


def region_engines(engines: Sequence[Engine]) -> dict[str, tuple[Engine, ...]]:
    """Return the same engines for each region, with names of their own."""
    return {
        region: tuple(msgspec.structs.replace(engine, name=f"{region}-{engine.name}") for engine in engines)
        for region in SHARES
    }


def divide(assignment: Assignment, urls: Mapping[str, str]) -> list[Assignment]:
    """Return what enters at each region, given its entry's URL. All requests of a conversation enter at one region."""
    names, shares = list(SHARES), list(SHARES.values())
    homes: dict[str, str] = {}
    rng = Random(len(assignment.planned) + len(assignment.sessions))

    def region_of(conversation: str) -> str:
        drawn = rng.choices(names, shares)[0]
        return homes.setdefault(conversation, drawn) if conversation else drawn

    planned = [(region_of(each.lengths.conversation), each) for each in assignment.planned]
    sessions = [(region_of(str(each.number)), each) for each in assignment.sessions]
    return [
        msgspec.structs.replace(
            assignment,
            url=urls[name],
            planned=[each for region, each in planned if region == name],
            sessions=[each for region, each in sessions if region == name],
            directory=assignment.directory / name,
            pooled=True,
        )
        for name in names
    ]


@contextmanager
def running_regions(
    peer: Peer | None, engines: Mapping[str, Sequence[Engine]], engine_ports: Mapping[str, int], directory: Path
) -> Iterator[dict[str, str]]:
    """Run a system, None for Penstock, in all regions during the context, and yield the URL of each region's entry."""
    matrix = matrix_of(load_bundle())
    if peer is None:
        bundle = directory / "policy"
        write_bundle(bundle, demo_bundle(matrix))
        regions = tuple(Region(name, "", (AGENT,), tuple(of_region)) for name, of_region in engines.items())
        with make_fleet(regions, engine_ports, directory / "penstock", Build(bundle=bundle), matrix) as fleet:
            yield {name: url(fleet.ports[agent_port(name, AGENT, "traffic")]) for name in engines}
        return
    if isinstance(peer, SkyWalkerPeer):
        with running_skywalker(engines, engine_ports, matrix, directory) as urls:
            yield urls
        return
    with ExitStack() as up:
        urls = {}
        for name, of_region in engines.items():
            process = start_peer(
                peer, directory / f"router-{name}", [engine_ports[engine.name] for engine in of_region]
            )
            up.callback(process.stop)
            urls[name] = url(process.port)
        yield urls


def run_at_once(driver: Driver, assignments: Sequence[Assignment]) -> DriverRun:
    """Run the driver once for each region with demand, all at the same time, and return the figures of all requests."""
    demanded = [assignment for assignment in assignments if assignment.planned or assignment.sessions]
    with ThreadPoolExecutor(max(1, len(demanded))) as pool:
        return pooled(list(pool.map(driver.run, demanded)))


def pooled(runs: Sequence[DriverRun]) -> DriverRun:
    """Return mean and quantiles of the times of all runs."""
    figures = {}
    for what in {what for run in runs for what in run.samples}:
        times_s = [time_s for run in runs for time_s in run.samples.get(what, ())]
        if times_s:
            figures[f"{what}_mean_s"] = round(fmean(times_s), 5)
            figures |= {f"{what}_{name}_s": round(quantile(times_s, part) or 0.0, 5) for name, part in PARTS.items()}
    return DriverRun(figures, sum(run.requests for run in runs), sum(run.errors for run in runs))
