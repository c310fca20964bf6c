"""The command `penstock-lab simulate-batches`: what a batch gains from the idle slots of four regions in a day."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lab.bench.bench_results import Columns, columns_table, write_results
from lab.simulate.batch_day import batch_days, one_day
from lab.simulate.batch_day_results import BatchDay
from lab.simulate.scaling_week import STEP_S

COLUMNS: Columns[BatchDay] = (
    ("max use, target", lambda row: row.name),
    ("idle used", lambda row: f"{row.idle_used_share:.1%}"),
    ("GPU hours", lambda row: f"{row.batch_gpu_hours:.0f}"),
    ("price", lambda row: f"{row.mean_price:.2f}"),
    ("elsewhere", lambda row: f"{row.away_share:.0%}"),
    ("returned", lambda row: f"{row.returned / max(1, row.batch_requests):.1%}"),
    ("preempted", lambda row: f"{row.preempted / max(1, row.batch_requests):.1%}"),
    ("lost", lambda row: f"{row.lost_share:.1%}"),
    ("wait p99", lambda row: f"{row.wait_p99_s:.2f}"),
    ("response p99", lambda row: f"{row.response_p99_s:.1f}"),
)


def simulate_batches(
    traces: Annotated[
        Path, typer.Option(help="Folder with Azure's and Mooncake's traces, which give the bursts.")
    ] = Path("../shared/data/traces"),
    hours: Annotated[float, typer.Option(min=0.1, max=24.0, help="Part of the day that is simulated.")] = 24.0,
    out: Annotated[Path, typer.Option(help="Output file (JSON).")] = Path("out/sim/batches.json"),
) -> None:
    """Run a batch in the idle slots of four regions with diurnal demand, and the same demand without it."""
    steps = int(hours * 3600.0 / STEP_S)
    demand = {name: rates[:steps] for name, rates in one_day(traces).items()}
    found = list(batch_days(demand))
    console = Console()
    console.print(
        columns_table(
            f"{hours:g} hours, four regions of 48 slots, 8 slots a GPU; waits and responses of clients (s)",
            COLUMNS,
            found,
        )
    )
    write_results(out, {"traces": traces.is_dir(), "hours": hours, "days": found})
    console.print(f"results: {out}")
