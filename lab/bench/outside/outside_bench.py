"""Compares Penstock with other routers, driven and measured by AIPerf. Run by `make bench-outside`.

Every round starts the engines anew for each system, in rotating order, and sends the same trace.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
from rich.table import Table

from adapters.servers.errors import MissingBinary, ServerError
from lab.bench.bench_results import Machine, closing_line, show, table, this_machine, write_results
from lab.bench.live.bench_live_report import PENSTOCK, System
from lab.bench.live.capacity import capacity_per_s
from lab.bench.live.contest import Setup, running_balancers
from lab.bench.live.fleet import start_engines
from lab.bench.live.series import CAPACITY_RATE_PER_S, CAPACITY_SECONDS
from lab.bench.live.systems import peers_for, system_of
from lab.bench.live.workloads import WORKLOADS, Draw, Workload
from lab.bench.outside.aiperf import AiperfError, AiperfRun, arguments, run_aiperf, write_trace
from lab.bench.peers.peer import Peer
from lab.open_files import allow_many_open_files
from lab.planet.configs import url
from lab.planet.topology import Engine

API_KEY = "demo-open"

WORKLOAD_NAMES = ("azure-conversation", "multi-turn", "system-prompts")

PEERS = ("envoy", "haproxy-maxconn", "sglang-cache-aware", "vllm-cache-aware", "smg-cache-aware")

SHOWN = ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s", "tpot_p50_s", "e2e_mean_s", "e2e_p50_s", "e2e_p99_s")


class Rounds(msgspec.Struct):
    """The runs of one system with one workload."""

    system: str
    runs: list[AiperfRun]
    load_averages: list[float]
    """Load average (1 min) of the machine at the end of each run."""
    problem: str = ""
    """Why runs are missing."""

    def figure(self, name: str) -> float | None:
        """Return the median of a figure over the rounds; None without one."""
        values = [run.figures[name] for run in self.runs if name in run.figures]
        return median(values) if values else None


class Contest(msgspec.Struct):
    """All systems with one workload."""

    workload: str
    rate_per_s: float
    load: float
    systems: list[Rounds]


class Results(msgspec.Struct, frozen=True):
    """The content of the file of results."""

    machine: Machine
    aiperf: str
    options: dict[str, object]
    systems: list[System]
    contests: list[Contest]


def best_other(contest: Contest, name: str) -> tuple[float, str] | None:
    """Return the lowest figure of the other systems and its system; None without one."""
    others = [
        (value, rounds.system)
        for rounds in contest.systems
        if rounds.system != PENSTOCK and (value := rounds.figure(name)) is not None
    ]
    return min(others, default=None)


def contest_table(contest: Contest) -> Table:
    """Return the figures of a contest in s, and the ratio of Penstock's to the best other system's."""
    rows = [_row(rounds) for rounds in contest.systems]
    ours = next((rounds for rounds in contest.systems if rounds.system == PENSTOCK), None)
    ratios = []
    for name in SHOWN:
        own, best = None if ours is None else ours.figure(name), best_other(contest, name)
        ratios.append("-" if own is None or best is None or best[0] <= 0.0 else f"{own / best[0]:.2f}")
    title = f"{contest.workload} at {contest.load:.0%} of capacity ({contest.rate_per_s:.1f}/s)"
    header = ("", *(name.removesuffix("_s").replace("_", " ") for name in SHOWN), "errors", "load")
    return table(title, header, [*rows, ("penstock / best other", *ratios, "", "")])


def _row(rounds: Rounds) -> tuple[str, ...]:
    cells = []
    for name in SHOWN:
        value = rounds.figure(name)
        cells.append("-" if value is None else f"{value:.4f}" if name.startswith("tpot") else f"{value:.2f}")
    errors = sum(run.errors for run in rounds.runs)
    return (rounds.system, *cells, str(errors), f"{max(rounds.load_averages, default=0.0):.0f}")


class _Series:
    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._options, self._directory = options, directory

    def contest(self, workload: Workload, peers: Sequence[Peer | None]) -> Contest:
        options, engines = self._options, workload.engines(self._options.engines)
        draw = Draw(CAPACITY_RATE_PER_S, CAPACITY_SECONDS, options.data, Random(options.seed))
        capacity = capacity_per_s([planned.lengths for planned in workload.plan(draw, 1.0)], engines)
        rate_per_s = options.load * capacity
        found = [Rounds(PENSTOCK if peer is None else peer.name, [], []) for peer in peers]
        for number in range(options.rounds):
            draw = Draw(rate_per_s, options.seconds, options.data, Random(options.seed + number))
            trace = self._directory / f"{workload.name}-{number}.jsonl"
            write_trace(workload.plan(draw, options.time_scale), trace)
            turn = number % len(peers)
            for at in (*range(turn, len(peers)), *range(turn)):
                place = self._directory / f"{workload.name}-{number}-{found[at].system}"
                self._run(Setup(peers[at], 1), engines, workload, trace, place, found[at])
        return Contest(workload.name, round(rate_per_s, 2), options.load, found)

    def _run(
        self, setup: Setup, engines: Sequence[Engine], workload: Workload, trace: Path, place: Path, into: Rounds
    ) -> None:
        print(f"{place.name} ...", file=sys.stderr, flush=True)
        try:
            running = start_engines(engines, self._options.time_scale, place)
            try:
                with running_balancers(setup, running, place) as ports:
                    to = url(ports[0])
                    command = arguments(self._options.aiperf, to, workload.model, trace, place / "aiperf", API_KEY)
                    into.runs.append(run_aiperf(command, place / "aiperf", self._options.time_scale))
            finally:
                running.process.kill()
        except (ServerError, AiperfError) as error:
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


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code, 2 if AIPerf is missing."""
    options = _options(given)
    if not options.aiperf.is_file():
        print(f"{options.aiperf} is missing: run `make bench-outside`, which installs AIPerf", file=sys.stderr)
        return 2
    version = subprocess.run([options.aiperf, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    allow_many_open_files()
    machine, contests = this_machine(), []
    with TemporaryDirectory(prefix="penstock-outside-") as name:
        series = _Series(options, Path(name))
        for workload in (WORKLOADS[each] for each in options.workload or WORKLOAD_NAMES):
            peers, systems, missing = present(options.peer or PEERS, workload.max_num_seqs)
            contests.append(series.contest(workload, peers))
            show(contest_table(contests[-1]))
    used = {name: str(value) for name, value in vars(options).items()}
    write_results(options.out, Results(machine, version, {**used}, systems, contests))
    for what, why in [*missing.items(), *((f.system, f.problem) for c in contests for f in c.systems if f.problem)]:
        print(f"missing: {what}: {why}")
    print(closing_line(machine, options.out))
    return 0


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-outside", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--aiperf", type=Path, default=Path(".venv-aiperf/bin/aiperf"), help="AIPerf's console script")
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
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
