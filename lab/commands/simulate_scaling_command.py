"""The command `penstock-lab simulate-scaling`, which compares autoscalers on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lab.bench.bench_results import Columns, columns_table, write_results
from lab.simulate.scaling import Scaled, compare

COLUMNS: Columns[Scaled] = (
    ("autoscaler", lambda row: row.name),
    ("time above target", lambda row: f"{row.above_target_share:.2%}"),
    ("served away", lambda row: f"{row.away_share:.2%}"),
    ("no slot", lambda row: f"{row.unserved_share:.2%}"),
    ("no slot in the loss", lambda row: f"{row.unserved_in_loss_share:.2%}"),
    ("GPU hours", lambda row: f"{row.gpu_hours:.0f}"),
)


def simulate_scaling(
    days: Annotated[int, typer.Option(min=2, max=30, help="Simulated days; the first day is not counted.")] = 4,
    cold_start: Annotated[float, typer.Option(min=0, max=3600, help="Cold start of an endpoint (s).")] = 300.0,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 1,
    out: Annotated[Path, typer.Option(help="Output file (JSON).")] = Path("out/bench/scaling.json"),
) -> None:
    """Compare recommended capacity with a reactive autoscaler over days with a surge and the loss of a region."""
    console = Console()
    found = compare(days=days, seed=seed, cold_start_s=cold_start)
    title = f"{days - 1} days after the first, three regions, cold start {cold_start:g} s"
    console.print(columns_table(title, COLUMNS, found))
    settings = {"days": days, "cold_start_s": cold_start, "seed": seed}
    write_results(out, {"settings": settings, "autoscalers": found})
    console.print(f"results: {out}")
