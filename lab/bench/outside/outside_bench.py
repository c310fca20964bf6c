"""Compares Penstock with other routers, driven and measured by load generators of others. Run by `make bench-outside`.

Every system gets the same requests, in front of engines in the same state, in an order that rotates.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from adapters.servers.errors import MissingBinary, ServerError
from lab.bench.bench_results import closing_line, show, this_machine, write_results
from lab.bench.live.bench_live_report import PENSTOCK, System
from lab.bench.live.capacity import capacity_per_s
from lab.bench.live.contest import Setup, running_balancers
from lab.bench.live.fleet import MAX_NUM_SEQS, MODEL, engines_of
from lab.bench.live.series import CAPACITY_RATE_PER_S, CAPACITY_SECONDS
from lab.bench.live.systems import peers_for, system_of
from lab.bench.live.workloads import FOR_SMALL_ENGINES, WORKLOADS, Draw, Workload
from lab.bench.outside.aiperf import Aiperf
from lab.bench.outside.driver import Assignment, Driver, DriverError, DriverRun
from lab.bench.outside.grounds import FakeEngines, Ground, vllm_servers
from lab.bench.outside.mockers import Mockers
from lab.bench.outside.outside_results import Contest, Results, Rounds, contest_table
from lab.bench.outside.plots import write_plots
from lab.bench.outside.regions import divide, region_engines, run_at_once, running_regions
from lab.bench.outside.sent_sessions import WORKLOAD_NAME as AGENT_SESSIONS
from lab.bench.outside.sent_sessions import draw_sessions
from lab.bench.outside.skywalker import NAME as SKYWALKER
from lab.bench.outside.skywalker import SkyWalkerPeer
from lab.bench.outside.vllm_bench import INSTALL, VllmBench
from lab.bench.peers.peer import Peer
from lab.open_files import allow_many_open_files
from lab.planet.configs import url
from lab.planet.topology import Engine

WORKLOAD_NAMES: Final = ("azure-conversation", "multi-turn", "system-prompts")

PEERS: Final = ("envoy", "haproxy-maxconn", "sglang-cache-aware", "vllm-cache-aware", "smg-cache-aware", SKYWALKER)

DRIVERS: Final = (Aiperf.name, VllmBench.name)

VLLM_SERVERS, VLLM_SLOTS = 2, 6
"""Number of real servers, and of requests that each runs at once."""

MOCKERS, MOCKER_SLOTS = 3, 8


class Demand(msgspec.Struct, frozen=True):
    """What every system of a contest serves, and on which engines."""

    name: str
    ground: Ground
    slots: int
    """Number of requests that each engine runs at once."""
    draw: Callable[[int], Assignment]
    """Returns what is sent in a round, by its number."""
    rate_per_s: float | None
    """None for sessions, whose rate depends on how fast they are answered."""
    load: float | None
    """Share of the engines' capacity; None where it is not known."""
    regions: Mapping[str, Sequence[Engine]] = {}
    """The engines by region; empty for a single region."""


class _Series:
    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._options, self._directory = options, directory
        self._contests = 0

    def contest(self, demand: Demand, driver: Driver, peers: Sequence[Peer | None]) -> Contest:
        found = [Rounds(PENSTOCK if peer is None else peer.name, [], []) for peer in peers]
        what = demand.ground.what + (f", in {len(demand.regions)} regions" if demand.regions else "")
        contest = Contest(demand.name, driver.name, what, demand.rate_per_s, demand.load, found)
        for number in range(self._options.rounds):
            drawn = demand.draw(number)
            contest.sessions = len(drawn.sessions)
            turn = (number + self._contests) % len(peers)
            for at in (*range(turn, len(peers)), *range(turn)):
                place = self._directory / f"{demand.name}-{driver.name}-{number}-{found[at].system}"
                print(f"{place.name} ...", file=sys.stderr, flush=True)
                assignment = msgspec.structs.replace(drawn, directory=place / "driver")
                try:
                    found[at].runs.append(_run(demand, driver, peers[at], assignment))
                except (ServerError, DriverError) as error:
                    found[at].problem = str(error)
                found[at].load_averages.append(round(os.getloadavg()[0], 1))
        self._contests += 1
        return contest


def _run(demand: Demand, driver: Driver, peer: Peer | None, assignment: Assignment) -> DriverRun:
    place = assignment.directory.parent
    with demand.ground.ready(place) as engine_ports:
        if demand.regions:
            with running_regions(peer, demand.regions, engine_ports, place) as urls:
                return run_at_once(driver, divide(assignment, urls))
        with running_balancers(Setup(peer, 1), demand.ground.engines, engine_ports, place) as ports:
            return driver.run(msgspec.structs.replace(assignment, url=url(ports[0])))


def present(names: Iterable[str], slots: int) -> tuple[list[Peer | None], list[System], dict[str, str]]:
    """Return the installed systems among `names`, Penstock first, and why others are missing."""
    by_name: Mapping[str, Peer] = {peer.name: peer for peer in (*peers_for(slots, 1), SkyWalkerPeer(slots))}
    peers: list[Peer | None] = [None]
    systems, missing = [system_of(None)], {}
    for name in names:
        try:
            systems.append(system_of(by_name[name]))
            peers.append(by_name[name])
        except MissingBinary as error:
            missing[name] = str(error)
    return peers, systems, missing


@contextmanager
def _demands(options: argparse.Namespace, directory: Path) -> Iterator[list[Demand]]:
    if options.servers:
        workloads = [FOR_SMALL_ENGINES[name] for name in options.workload or FOR_SMALL_ENGINES]
        with vllm_servers(options.vllm, VLLM_SERVERS, MODEL, VLLM_SLOTS, directory / "servers") as servers:
            yield [_at_rate(options, workload, servers, options.rate) for workload in workloads]
        return
    found: list[Demand] = []
    for name in options.workload or WORKLOAD_NAMES:
        if name == AGENT_SESSIONS:
            found.append(_of_sessions(options))
        elif options.mocker:
            mockers = Mockers(options.mocker, MOCKERS, WORKLOADS[name].model, MOCKER_SLOTS)
            found.append(_at_rate(options, WORKLOADS[name], mockers, options.rate))
        else:
            found.append(_at_load(options, WORKLOADS[name]))
    yield found


def _at_rate(options: argparse.Namespace, workload: Workload, ground: Ground, rate_per_s: float) -> Demand:
    """Requests at times that do not depend on how fast they are answered."""

    def draw(number: int) -> Assignment:
        drawn = Draw(rate_per_s, options.seconds, options.data, Random(options.seed + number))
        planned = workload.plan(drawn, options.time_scale)
        return Assignment("", workload.model, planned, options.seconds / options.time_scale, options.time_scale, Path())

    return Demand(workload.name, ground, workload.max_num_seqs, draw, rate_per_s, None)


def _at_load(options: argparse.Namespace, workload: Workload) -> Demand:
    engines, regions = _engines(options, workload.engines(options.engines))
    sample = Draw(CAPACITY_RATE_PER_S, CAPACITY_SECONDS, options.data, Random(options.seed))
    capacity = capacity_per_s([planned.lengths for planned in workload.plan(sample, 1.0)], engines)
    demand = _at_rate(options, workload, FakeEngines(engines, options.time_scale), options.load * capacity)
    return msgspec.structs.replace(demand, name=_name(workload.name, regions), load=options.load, regions=regions)


def _of_sessions(options: argparse.Namespace) -> Demand:
    """Sessions whose number is such that they keep a share of the engines busy."""
    engines, regions = _engines(options, engines_of(options.engines))

    def draw(number: int) -> Assignment:
        sessions = draw_sessions(options.load, engines, Random(options.seed + number))
        return Assignment("", MODEL, [], 0.0, options.time_scale, Path(), sessions)

    ground = FakeEngines(engines, options.time_scale)
    return Demand(_name(AGENT_SESSIONS, regions), ground, MAX_NUM_SEQS, draw, None, options.load, regions)


def _name(workload: str, regions: Mapping[str, Sequence[Engine]]) -> str:
    return f"{workload}-regions" if regions else workload


def _engines(
    options: argparse.Namespace, engines: Sequence[Engine]
) -> tuple[Sequence[Engine], Mapping[str, Sequence[Engine]]]:
    """Return all engines, and those of each region if there are several."""
    if not options.regions:
        return engines, {}
    regions = region_engines(engines)
    return [engine for of_region in regions.values() for engine in of_region], regions


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code, 2 if a driver is missing or the servers do not start."""
    options = _options(given)
    try:
        return _measure(options)
    except (DriverError, ServerError) as error:
        print(error, file=sys.stderr)
        return 2


def _measure(options: argparse.Namespace) -> int:
    drivers = _drivers(options)
    versions = {driver.name: driver.version() for driver in drivers}
    allow_many_open_files()
    machine, contests = this_machine(), []
    with TemporaryDirectory(prefix="penstock-outside-") as name, _demands(options, Path(name)) as demands:
        series = _Series(options, Path(name))
        for demand in demands:
            peers, systems, missing = present(options.peer or PEERS, demand.slots)
            for driver in drivers:
                if driver.name == VllmBench.name and (demand.regions or demand.rate_per_s is None):
                    print(f"{demand.name}: not with {driver.name}, which sends neither sessions nor to several regions")
                    continue
                contests.append(series.contest(demand, driver, peers))
                show(contest_table(contests[-1]))
    used = {option: str(value) for option, value in vars(options).items()}
    results = Results(machine, versions, used, systems, contests)
    write_results(options.out, results)
    if options.plots:
        write_plots(results, options.plots)
    for what, why in [*missing.items(), *((f.system, f.problem) for c in contests for f in c.systems if f.problem)]:
        print(f"missing: {what}: {why}")
    print(closing_line(machine, options.out))
    return 0


def _drivers(options: argparse.Namespace) -> list[Driver]:
    """Return the drivers to use; raises DriverError where the options contradict each other."""
    drivers: list[Driver] = []
    for name in options.driver or (DRIVERS if options.vllm else (Aiperf.name,)):
        if name == VllmBench.name and not options.vllm:
            raise DriverError(f"--driver {name} needs --vllm, the path of vLLM's console script: {INSTALL}")
        drivers.append(Aiperf(options.aiperf) if name == Aiperf.name else VllmBench(options.vllm))
    if options.servers and not options.vllm:
        raise DriverError(f"--servers needs --vllm, the path of vLLM's console script: {INSTALL}")
    asked = set(options.workload or ())
    if (options.servers or options.mocker) and (options.regions or AGENT_SESSIONS in asked):
        raise DriverError(f"--regions and --workload {AGENT_SESSIONS} run in front of the lab's engines only")
    if asked and options.servers != (asked <= FOR_SMALL_ENGINES.keys()):
        raise DriverError(f"with --servers, and only so, --workload is one of {', '.join(FOR_SMALL_ENGINES)}")
    return drivers


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-outside", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--aiperf", type=Path, default=Path(".venv-aiperf/bin/aiperf"), help="AIPerf's console script")
    parser.add_argument("--vllm", type=Path, help="vLLM's console script, which makes `vllm bench serve` a driver too")
    parser.add_argument("--driver", action="append", choices=DRIVERS, help="repeatable; default: all that are given")
    parser.add_argument("--servers", action="store_true", help="two real vLLM servers on the CPU; needs --vllm")
    parser.add_argument("--mocker", type=Path, help="Python with ai-dynamo: three engines of dynamo.mocker instead")
    parser.add_argument("--rate", type=float, default=1.5, help="requests/s with --servers and --mocker")
    workloads = (*WORKLOAD_NAMES, AGENT_SESSIONS, *FOR_SMALL_ENGINES)
    parser.add_argument("--workload", action="append", choices=workloads, help="repeatable; default: all but sessions")
    parser.add_argument("--regions", action="store_true", help="three regions with round trips and unequal demand")
    parser.add_argument("--peer", action="append", choices=PEERS, help="repeatable; default: all")
    parser.add_argument("--load", type=float, default=0.8, help="share of the engines' capacity")
    parser.add_argument("--rounds", type=int, default=1, help="each round measures every system")
    parser.add_argument("--seconds", type=float, default=48.0, help="duration in the modelled hardware's time")
    parser.add_argument("--engines", type=int, default=3, help="engines of each accelerator type")
    parser.add_argument("--time-scale", type=float, default=1.0, help="speed relative to the modelled hardware")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/traces"), help="folder of recorded traces")
    parser.add_argument("--out", type=Path, default=Path("out/bench/outside.json"), help="file for the results")
    parser.add_argument("--plots", type=Path, default=Path("out/bench"), help="folder for the plots (SVG)")
    return parser.parse_args(given)


if __name__ == "__main__":
    # Otherwise the processes that vLLM servers have started would outlive the benchmark.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
