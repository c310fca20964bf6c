"""Compares Penstock with other routers, driven and measured by load generators of others. Run by `make bench-outside`.

Every system gets the same requests, in front of engines in the same state, in an order that rotates.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from lab.bench.live.series import CAPACITY_RATE_PER_S, CAPACITY_SECONDS
from lab.bench.live.systems import peers_for, system_of
from lab.bench.live.workloads import FOR_SMALL_ENGINES, WORKLOADS, Draw, Workload
from lab.bench.outside.aiperf import Aiperf
from lab.bench.outside.driver import Assignment, Driver, DriverError
from lab.bench.outside.grounds import FakeEngines, Ground, vllm_servers
from lab.bench.outside.mockers import Mockers
from lab.bench.outside.outside_results import Contest, Results, Rounds, contest_table
from lab.bench.outside.plots import write_plots
from lab.bench.outside.vllm_bench import INSTALL, VllmBench
from lab.bench.peers.peer import Peer
from lab.open_files import allow_many_open_files
from lab.planet.configs import url

WORKLOAD_NAMES: Final = ("azure-conversation", "multi-turn", "system-prompts")

PEERS: Final = ("envoy", "haproxy-maxconn", "sglang-cache-aware", "vllm-cache-aware", "smg-cache-aware")

DRIVERS: Final = (Aiperf.name, VllmBench.name)

VLLM_SERVERS, VLLM_SLOTS = 2, 6
"""Number of real servers, and of requests that each runs at once."""

MOCKERS, MOCKER_SLOTS = 3, 8


class Demand(msgspec.Struct, frozen=True):
    """What every system of a contest serves."""

    workload: Workload
    rate_per_s: float
    load: float | None
    """Share of the engines' capacity; None where it is not known."""
    time_scale: float
    """Speed of engines and arrivals relative to the modelled hardware."""


class _Series:
    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._options, self._directory = options, directory
        self._contests = 0

    def contest(self, demand: Demand, ground: Ground, driver: Driver, peers: Sequence[Peer | None]) -> Contest:
        options, workload = self._options, demand.workload
        found = [Rounds(PENSTOCK if peer is None else peer.name, [], []) for peer in peers]
        for number in range(options.rounds):
            draw = Draw(demand.rate_per_s, options.seconds, options.data, Random(options.seed + number))
            planned = workload.plan(draw, demand.time_scale)
            turn = (number + self._contests) % len(peers)
            for at in (*range(turn, len(peers)), *range(turn)):
                place = self._directory / f"{workload.name}-{driver.name}-{number}-{found[at].system}"
                seconds = options.seconds / demand.time_scale
                assignment = Assignment("", workload.model, planned, seconds, demand.time_scale, place / "driver")
                self._run(Setup(peers[at], 1), ground, driver, assignment, found[at])
        self._contests += 1
        rate_per_s = round(demand.rate_per_s, 2)
        return Contest(workload.name, driver.name, ground.what, rate_per_s, demand.load, found)

    def _run(self, setup: Setup, ground: Ground, driver: Driver, assignment: Assignment, into: Rounds) -> None:
        place = assignment.directory.parent
        print(f"{place.name} ...", file=sys.stderr, flush=True)
        try:
            with (
                ground.ready(place) as engine_ports,
                running_balancers(setup, ground.engines, engine_ports, place) as ports,
            ):
                into.runs.append(driver.run(msgspec.structs.replace(assignment, url=url(ports[0]))))
        except (ServerError, DriverError) as error:
            into.problem = str(error)
        into.load_averages.append(round(os.getloadavg()[0], 1))


def present(names: Iterable[str], slots: int) -> tuple[list[Peer | None], list[System], dict[str, str]]:
    """Return the installed systems among `names`, Penstock first, and why others are missing."""
    by_name: Mapping[str, Peer] = {peer.name: peer for peer in peers_for(slots, 1)}
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
def _demands(options: argparse.Namespace, directory: Path) -> Iterator[list[tuple[Demand, Ground]]]:
    if options.servers:
        model, place = FOR_SMALL_ENGINES.model, directory / "servers"
        with vllm_servers(options.vllm, VLLM_SERVERS, model, VLLM_SLOTS, place) as servers:
            yield [(Demand(FOR_SMALL_ENGINES, options.rate, None, 1.0), servers)]
        return
    found: list[tuple[Demand, Ground]] = []
    for workload in (WORKLOADS[name] for name in options.workload or WORKLOAD_NAMES):
        if options.mocker:
            mockers = Mockers(options.mocker, MOCKERS, workload.model, MOCKER_SLOTS)
            found.append((Demand(workload, options.rate, None, 1.0), mockers))
            continue
        engines = workload.engines(options.engines)
        draw = Draw(CAPACITY_RATE_PER_S, CAPACITY_SECONDS, options.data, Random(options.seed))
        capacity = capacity_per_s([planned.lengths for planned in workload.plan(draw, 1.0)], engines)
        demand = Demand(workload, options.load * capacity, options.load, options.time_scale)
        found.append((demand, FakeEngines(engines, options.time_scale)))
    yield found


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code, 2 if a driver is missing or the servers do not start."""
    options = _options(given)
    try:
        return _measure(options)
    except (DriverError, ServerError) as error:
        print(error, file=sys.stderr)
        return 2


def _measure(options: argparse.Namespace) -> int:
    drivers: list[Driver] = []
    for name in options.driver or (DRIVERS if options.vllm else (Aiperf.name,)):
        if name == VllmBench.name and not options.vllm:
            raise DriverError(f"--driver {name} needs --vllm, the path of vLLM's console script: {INSTALL}")
        drivers.append(Aiperf(options.aiperf) if name == Aiperf.name else VllmBench(options.vllm))
    if options.servers and not options.vllm:
        raise DriverError(f"--servers needs --vllm, the path of vLLM's console script: {INSTALL}")
    versions = {driver.name: driver.version() for driver in drivers}
    allow_many_open_files()
    machine, contests = this_machine(), []
    with TemporaryDirectory(prefix="penstock-outside-") as name, _demands(options, Path(name)) as demands:
        series = _Series(options, Path(name))
        for demand, ground in demands:
            peers, systems, missing = present(options.peer or PEERS, demand.workload.max_num_seqs)
            for driver in drivers:
                contests.append(series.contest(demand, ground, driver, peers))
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


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-outside", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--aiperf", type=Path, default=Path(".venv-aiperf/bin/aiperf"), help="AIPerf's console script")
    parser.add_argument("--vllm", type=Path, help="vLLM's console script, which makes `vllm bench serve` a driver too")
    parser.add_argument("--driver", action="append", choices=DRIVERS, help="repeatable; default: all that are given")
    parser.add_argument("--servers", action="store_true", help="two real vLLM servers on the CPU; needs --vllm")
    parser.add_argument("--mocker", type=Path, help="Python with ai-dynamo: three engines of dynamo.mocker instead")
    parser.add_argument("--rate", type=float, default=1.5, help="requests/s with --servers and --mocker")
    parser.add_argument("--workload", action="append", choices=WORKLOAD_NAMES, help="repeatable; default: all")
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
