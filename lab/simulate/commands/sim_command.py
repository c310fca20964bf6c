"""The command `penstock-lab sim`, which measures the product's decision code against baselines and targets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lab.simulate.contenders import PENSTOCK
from lab.simulate.targets.comparison import Target
from lab.simulate.targets.frontier import METRICS, FrontierPoint
from lab.simulate.targets.targets_report import FULL, SMALL, simulate, write


def sim(
    full: Annotated[bool, typer.Option("--full", help="More seeds and longer runs.")] = False,
    processes: Annotated[int, typer.Option(min=0, max=256, help="Number of processes; 0: one per core.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory of report.json and index.html.")] = Path("out/sim"),
) -> None:
    """Measure every target of the decision code against baselines with paired seeds."""
    report = simulate(FULL if full else SMALL, processes or os.cpu_count() or 1)
    write(report, out)
    console = Console()
    console.print(_table(report.targets))
    console.print(_frontier(report.frontier))
    console.print(f"results: {out / 'report.json'}, {out / 'index.html'}")


def _table(targets: list[Target]) -> Table:
    table = Table(title=f"{sum(target.kept for target in targets)} of {len(targets)} targets are met")
    for column in ("target", "limit", "measured", "95 % interval", "kept"):
        table.add_column(column, justify="left" if column == "target" else "right")
    for target in targets:
        low, high = target.interval
        verdict = "yes" if target.kept else "[red]no[/red]"
        name = f"{target.name}\n  {target.note}" if target.note else target.name
        table.add_row(name, target.target, f"{target.measured:.3f}", f"{low:.3f}-{high:.3f}", verdict)
    return table


def _frontier(points: list[FrontierPoint]) -> Table:
    table = Table(title="service disciplines: end to end (s)")
    for column in ("workload", "discipline", "mean", "p50", "p99", "p99.9", "on the frontier of"):
        table.add_column(column, justify="right" if column in ("mean", "p50", "p99", "p99.9") else "left")
    for point in points:
        penstock = [name for name in point.behind if name.startswith(PENSTOCK)]
        all_of = "all" if not point.behind else "[red]none[/red]" if penstock else "Penstock's"
        figures = [f"{point.measured[metric]:.2f}" for metric in METRICS]
        table.add_row(point.workload, point.discipline, *figures, all_of)
    return table
