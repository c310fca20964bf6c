"""The command `penstock-lab simulate-week`, which compares autoscalers over a week of real demand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lab.bench.bench_results import Columns, columns_table, write_results
from lab.simulate.scaling_week import COLD_START_S, MAX_WAIT_S, Week, WeekResult, week_results

COLUMNS: Columns[WeekResult] = (
    ("autoscaler", lambda row: row.name),
    ("below objective", lambda row: f"{row.below_objective_share:.2%}"),
    ("GPU hours", lambda row: f"{row.gpu_hours:.0f}"),
    ("changes", lambda row: f"{row.changes}"),
)


def simulate_week_command(
    traces: Annotated[
        Path, typer.Option(help="Folder with Azure's and Mooncake's traces, which give the bursts.")
    ] = Path("../shared/data/traces"),
    week: Annotated[Week, typer.Option(help="Trace that gives the level of demand.")] = Week.M_SMALL,
    block: Annotated[
        int, typer.Option(min=0, max=100, help="Steps (30 s) of the bursts drawn at random; 0 repeats them each hour.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="Output file (JSON).")] = Path("out/sim/week.json"),
) -> None:
    """Compare recommended capacity with an HPA, KEDA and perfect foresight over a week and four regions."""
    console = Console()
    found = list(week_results(traces, week, block))
    title = f"a week, four regions, cold start {COLD_START_S:g} s; objective: expected wait up to {MAX_WAIT_S:g} s"
    console.print(columns_table(title, COLUMNS, found))
    write_results(out, {"traces": traces.is_dir(), "autoscalers": found})
    console.print(f"results: {out}")
