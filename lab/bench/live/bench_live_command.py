"""`penstock-lab bench-live`: options, their errors, and the exit code."""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import structlog
import typer
from rich.console import Console

from lab.bench.bench_results import closing_line, goals_table, show, this_machine, write_results
from lab.bench.live.bench_live_report import Conditions, LiveResults, contest_table, live_results
from lab.bench.live.fleet import INSTANCES
from lab.bench.live.live_page import live_page
from lab.bench.live.series import Selection, run_series
from lab.bench.live.systems import PEER_NAMES
from lab.bench.live.workloads import WORKLOADS, Workload, trace_workload
from lab.open_files import allow_many_open_files
from lab.refusal import refuse
from lab.servers.errors import ServerError
from lab.traces.trace import TraceError

LOADS = (0.5, 0.8, 1.0)
"""Parts of capacity that `--all` takes."""

DEFAULT_WORKLOADS = ("azure-conversation", "multi-turn")
DEFAULT_LOADS = (0.8,)

MAX_LAG_MS = 50.0
"""The replayer itself was later than this (ms, on the wall) for one request in a hundred: the machine was too busy."""


def bench_live(
    workload: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(WORKLOADS)}; repeatable.")] = None,
    load: Annotated[list[float] | None, typer.Option(min=0.01, max=2, help="Part of capacity; repeatable.")] = None,
    instances: Annotated[
        list[int] | None, typer.Option(min=1, max=INSTANCES, help="Instances of the balancer; repeatable.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(PEER_NAMES)}; repeatable.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every workload, at 50, 80 and 100 %, 1 and 3 instances: hours.")
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="An Azure CSV or Mooncake JSONL, as one more workload.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of the recorded traces.")] = Path("../shared/data/traces"),
    rate: Annotated[float | None, typer.Option(min=0.1, help="Requests per second, instead of --load.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; every balancer has one turn in each.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Length of a replay in the modelled hardware's time.")] = 48.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of it that are not counted.")] = 8.0,
    engines: Annotated[int, typer.Option(min=1, max=50, help="Engines of each accelerator type.")] = 3,
    time_scale: Annotated[float, typer.Option(min=0.1, max=100, help="How many times as fast as that.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 2026,
    out: Annotated[Path, typer.Option(help="File of the results; the page has the same name, with .html.")] = Path(
        "out/bench/live.json"
    ),
) -> None:
    """Send the same workloads through Penstock and through other balancers, and compare latency and GPU time."""
    _refuse_unknown("--workload", workload or (), WORKLOADS)
    _refuse_unknown("--peer", peer or (), PEER_NAMES)
    if warm_up >= seconds:
        refuse("bench-live", f"--warm-up {warm_up:g}: nothing is left of {seconds:g} --seconds; take less")
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
    conditions = Conditions(time_scale, seconds, warm_up, rounds, seed)
    allow_many_open_files()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        found = _measure(selection, conditions)
        write_results(out, found)
        out.with_suffix(".html").write_text(live_page(found), encoding="utf-8")
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
    print(f"Plots in {out.with_suffix('.html')}.")
    print(closing_line(found.machine, out))
    runs = [run for contest in found.contests for scores in contest.scores for run in scores.rounds]
    late_ms = max((run.lag_p99_ms for run in runs), default=0.0)
    if late_ms > MAX_LAG_MS:
        print(f"One request in a hundred was sent {late_ms:.0f} ms late: this machine was too busy to trust latencies.")
