"""`penstock-lab bench-live`: options, their errors, and the exit code."""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import structlog
import typer
from rich.console import Console

from adapters.servers.errors import ServerError
from lab.bench.bench_results import closing_line, goals_table, show, this_machine, write_results
from lab.bench.live.bench_live_report import Conditions, LiveResults, contest_table, live_results
from lab.bench.live.fleet import INSTANCES
from lab.bench.live.series import Selection, run_series
from lab.bench.live.systems import PEER_NAMES
from lab.bench.live.workloads import WORKLOADS, Workload, trace_workload
from lab.open_files import allow_many_open_files
from lab.refusal import refuse
from lab.traces.trace import TraceError

LOADS = (0.5, 0.8, 1.0)
"""Loads of `--all`, as shares of capacity."""

DEFAULT_WORKLOADS = ("azure-conversation", "multi-turn")
DEFAULT_LOADS = (0.8,)

MAX_LAG_MS = 50.0
"""Maximum p99 lag (ms of wall-clock time) of the replayer; a larger lag means that the machine was too busy."""


def bench_live(
    workload: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(WORKLOADS)}; repeatable.")] = None,
    load: Annotated[list[float] | None, typer.Option(min=0.01, max=2, help="Share of capacity; repeatable.")] = None,
    instances: Annotated[
        list[int] | None, typer.Option(min=1, max=INSTANCES, help="Instances of the balancer; repeatable.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(PEER_NAMES)}; repeatable.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every workload at 50, 80 and 100 %, 1 and 3 instances; takes hours.")
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Azure CSV or Mooncake JSONL, an extra workload.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of the recorded traces.")] = Path("../shared/data/traces"),
    rate: Annotated[float | None, typer.Option(min=0.1, help="Requests per second, instead of --load.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each round measures every balancer.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Duration of a replay in the modelled hardware's time.")] = 48.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of the replay that are warm-up.")] = 8.0,
    engines: Annotated[int, typer.Option(min=1, max=50, help="Engines of each accelerator type.")] = 3,
    time_scale: Annotated[float, typer.Option(min=0.1, max=100, help="Speed relative to the modelled hardware.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 2026,
    known_lengths: Annotated[
        bool,
        typer.Option("--known-lengths", help="max_tokens of a chat is the length of its answer; else 1,024 for all."),
    ] = False,
    out: Annotated[Path, typer.Option(help="File for the results.")] = Path("out/bench/live.json"),
) -> None:
    """Send the same workloads through Penstock and through other balancers, and compare latency and GPU time."""
    _refuse_unknown("--workload", workload or (), WORKLOADS)
    _refuse_unknown("--peer", peer or (), PEER_NAMES)
    if warm_up >= seconds:
        refuse("bench-live", f"--warm-up {warm_up:g}: nothing is left of --seconds {seconds:g}; reduce it")
    names = workload or (() if trace is not None else tuple(WORKLOADS) if everything else DEFAULT_WORKLOADS)
    workloads: list[Workload] = [WORKLOADS[name] for name in names]
    if trace is not None:
        workloads.append(trace_workload(trace))
    selection = Selection(
        workloads=tuple(workloads),
        loads=tuple(load or (LOADS if everything else DEFAULT_LOADS)),
        rate_per_s=rate,
        instances=tuple(instances or ((1, INSTANCES) if everything else (1,))),
        peers=tuple(peer or PEER_NAMES),
        engines_each=engines,
        data=data,
    )
    conditions = Conditions(time_scale, seconds, warm_up, rounds, seed, known_lengths)
    allow_many_open_files()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        found = _measure(selection, conditions)
        write_results(out, found)
    except (TraceError, ServerError, OSError) as error:
        refuse("bench-live", str(error))
    _report(found, out)


def _measure(selection: Selection, conditions: Conditions) -> LiveResults:
    machine = this_machine()
    with TemporaryDirectory(prefix="penstock-bench-") as name, Console(stderr=True).status("starting") as status:
        systems, contests, missing = run_series(selection, conditions, Path(name), status.update)
    return live_results(machine, conditions, systems, contests, missing)


def _refuse_unknown(
    option: str, given: list[str] | tuple[str, ...], known: tuple[str, ...] | dict[str, Workload]
) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        kind = option.removeprefix("--")
        refuse("bench-live", f"{option} {', '.join(unknown)}: no such {kind}; there are {', '.join(known)}")


def _report(found: LiveResults, out: Path) -> None:
    show(*(contest_table(contest) for contest in found.contests), goals_table(found.goals))
    for name, why in found.missing.items():
        print(f"missing: {name}: {why}")
    for contest in found.contests:
        for name, why in contest.missing.items():
            print(f"missing: {name} in {contest.demand.workload}: {why}")
    print(closing_line(found.machine, out))
    runs = [run for contest in found.contests for scores in contest.scores for run in scores.rounds]
    late_ms = max((run.lag_p99_ms for run in runs), default=0.0)
    if late_ms > MAX_LAG_MS:
        print(f"The p99 lag of the replayer is {late_ms:.0f} ms: the machine was too busy for reliable latencies.")
