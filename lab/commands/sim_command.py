"""The command `penstock-lab sim`, which measures the product's decision code against baselines and targets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lab.bench.bench_results import Columns, columns_table, write_results
from lab.simulate.contenders import PENSTOCK
from lab.simulate.targets.comparison import Target
from lab.simulate.targets.frontier import METRICS, FrontierPoint
from lab.simulate.targets.targets_report import FULL, SMALL, simulate


def sim(
    full: Annotated[bool, typer.Option("--full", help="More seeds and longer runs.")] = False,
    known_lengths: Annotated[
        bool,
        typer.Option("--known-lengths", help="max_tokens of a chat is the length of its answer; else 1,024 for all."),
    ] = False,
    processes: Annotated[int, typer.Option(min=0, max=256, help="Number of processes; 0: one per core.")] = 0,
    out: Annotated[Path, typer.Option(help="Output file (JSON).")] = Path("out/sim/report.json"),
) -> None:
    """Measure every target of the decision code against baselines with paired seeds."""
    scale = FULL if full else SMALL
    report = simulate(scale, processes or os.cpu_count() or 1, known_lengths=known_lengths)
    write_results(out, report)
    console = Console()
    kept = sum(target.kept for target in report.targets)
    console.print(columns_table(f"{kept} of {len(report.targets)} targets are met", TARGETS, report.targets))
    console.print(columns_table("service disciplines: end to end (s)", FRONTIER, report.frontier))
    console.print(f"results: {out}")


TARGETS: Columns[Target] = (
    ("target", lambda target: f"{target.name}\n  {target.note}" if target.note else target.name),
    ("limit", lambda target: target.target),
    ("measured", lambda target: f"{target.measured:.3f}"),
    ("95 % interval", lambda target: f"{target.interval[0]:.3f}-{target.interval[1]:.3f}"),
    ("kept", lambda target: "yes" if target.kept else "[red]no[/red]"),
)

FRONTIER: Columns[FrontierPoint] = (
    ("workload", lambda point: point.workload),
    ("discipline", lambda point: point.discipline),
    ("mean", lambda point: f"{point.measured[METRICS[0]]:.2f}"),
    ("p50", lambda point: f"{point.measured[METRICS[1]]:.2f}"),
    ("p99", lambda point: f"{point.measured[METRICS[2]]:.2f}"),
    ("p99.9", lambda point: f"{point.measured[METRICS[3]]:.2f}"),
    ("on the frontier of", lambda point: _frontier_of(point)),
)


def _frontier_of(point: FrontierPoint) -> str:
    if not point.behind:
        return "all"
    return "[red]none[/red]" if any(name.startswith(PENSTOCK) for name in point.behind) else "Penstock's"
