"""`penstock-lab bench-live`: options, their errors, and the exit code."""

from __future__ import annotations

import importlib.metadata
import logging
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated

import structlog
import typer
from rich.console import Console

from lab.bench import compiled
from lab.bench.bench_results import closing_line, goals_table, show, this_machine, write_results
from lab.bench.live.bench_live_report import PENSTOCK, Conditions, LiveResults, balancer, live_results, live_table
from lab.bench.live.contest import LiveRun, Setup, contest
from lab.bench.live.fleet import INSTANCES, MAX_NUM_SEQS, engines_of, workload_of
from lab.bench.peers.envoy import Envoy
from lab.bench.peers.haproxy import Haproxy
from lab.bench.peers.nginx import Nginx
from lab.bench.peers.peer import Peer
from lab.bench.site import SETTINGS
from lab.open_files import allow_many_open_files
from lab.planet.configs import QUEUE_PER_ENGINE
from lab.refusal import refuse
from lab.servers.errors import ServerError
from lab.traces.trace import TraceError

"""Exit code for input that cannot be used."""

BALANCERS: tuple[Peer, ...] = (Envoy(), Haproxy(), Nginx())

MAX_LAG_MS = 50.0
"""The replayer itself was later than this (ms, on the wall) for one request in a hundred: the machine was too busy."""

LONG_ROUNDS, LONG_SECONDS = 3, 240.0


def bench_live(
    trace: Annotated[Path | None, typer.Option(help="Azure CSV or Mooncake JSONL; else one is generated.")] = None,
    peer: Annotated[list[str] | None, typer.Option(help="Compare with this one only; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; every balancer has one turn in each.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Length of a replay in the modelled hardware's time.")] = 56.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of it that are not counted.")] = 8.0,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests per second in that time.")] = 15.0,
    engines: Annotated[int, typer.Option(min=1, max=50, help="Engines of each accelerator type.")] = 3,
    time_scale: Annotated[float, typer.Option(min=0.1, max=100, help="How many times as fast as that.")] = 4.0,
    long: Annotated[bool, typer.Option("--long", help=f"{LONG_ROUNDS} rounds of {LONG_SECONDS:.0f} s.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 2026,
    out: Annotated[Path, typer.Option(help="File of the results.")] = Path("out/bench/live.json"),
) -> None:
    """Send the same workload through Penstock and through other balancers, and compare latency and engine use."""
    unknown = set(peer or ()) - {balancer.name for balancer in BALANCERS}
    if unknown:
        names = ", ".join(balancer.name for balancer in BALANCERS)
        refuse("bench-live", f"--peer {', '.join(sorted(unknown))}: no such peer; there are {names}")
    if warm_up >= seconds:
        refuse("bench-live", f"--warm-up {warm_up:g}: nothing is left of {seconds:g} --seconds; take less")
    if long:
        rounds, seconds = LONG_ROUNDS, LONG_SECONDS
    fleet = engines_of(engines)
    conditions = Conditions(
        workload=f"{trace.name if trace else 'generated'}, outputs and prompts capped",
        engines={engine.name: engine.accelerator for engine in fleet},
        seats=MAX_NUM_SEQS,
        time_scale=time_scale,
        rate_per_s=rate,
        seconds=seconds,
        warm_up_seconds=warm_up,
        rounds=rounds,
    )
    peers = [balancer for balancer in BALANCERS if peer is None or balancer.name in peer]
    allow_many_open_files()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        found = _measure(conditions, trace, engines, peers, seed)
        write_results(out, found)
    except (TraceError, ServerError, OSError) as error:
        refuse("bench-live", str(error))
    show(live_table(found), goals_table(found.goals))
    for name, why in found.missing.items():
        print(f"missing: {name}: {why}")
    print(closing_line(found.machine, out))
    late_ms = max(run.lag_p99_ms for balancer in found.balancers for run in balancer.rounds)
    if late_ms > MAX_LAG_MS:
        print(f"One request in a hundred was sent {late_ms:.0f} ms late: this machine was too busy to trust latencies.")


def _measure(
    conditions: Conditions, trace: Path | None, engines_each: int, peers: list[Peer], seed: int
) -> LiveResults:
    machine = this_machine()
    fleet = engines_of(engines_each)
    missing: dict[str, str] = {}
    runs: dict[tuple[str, int], list[LiveRun]] = {}
    setups = [Setup(balancer, instances) for balancer in (None, *peers) for instances in (1, INSTANCES)]
    with TemporaryDirectory(prefix="penstock-bench-") as name, Console(stderr=True).status("starting") as status:
        for number in range(conditions.rounds):
            workload = workload_of(
                trace,
                conditions.rate_per_s,
                conditions.seconds,
                conditions.time_scale,
                Random(seed + number),
            )
            for setup in setups[number:] + setups[:number]:
                system = _name(setup)
                if system in missing:
                    continue
                status.update(f"round {number + 1} of {conditions.rounds}: {setup.instances} x {system}")
                directory = Path(name) / f"{number}-{system}-{setup.instances}"
                warm_up_s = conditions.warm_up_seconds / conditions.time_scale
                try:
                    run = contest(setup, fleet, workload, conditions.time_scale, warm_up_s, directory)
                except ServerError as error:
                    if setup.balancer is None:
                        raise
                    missing[system] = " ".join(str(error).split())
                    continue
                runs.setdefault((system, setup.instances), []).append(run)
    together = [
        balancer(system, _version(setup), _settings(setup), setup.instances, runs[system, setup.instances])
        for setup in setups
        if ((system := _name(setup)), setup.instances) in runs and system not in missing
    ]
    return live_results(machine, conditions, together, missing)


def _name(setup: Setup) -> str:
    return PENSTOCK if setup.balancer is None else setup.balancer.name


def _version(setup: Setup) -> str:
    return importlib.metadata.version(PENSTOCK) if setup.balancer is None else setup.balancer.version()


def _settings(setup: Setup) -> tuple[str, ...]:
    if setup.balancer is not None:
        return setup.balancer.settings
    known = f"per engine: its accelerator, {MAX_NUM_SEQS} slots and {QUEUE_PER_ENGINE} queue places"
    return (*SETTINGS, compiled.form(), known)
