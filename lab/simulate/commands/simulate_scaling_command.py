"""The command `penstock-lab simulate-scaling`, which compares autoscalers on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from lab.simulate.scaling import compare


def simulate_scaling(
    days: Annotated[int, typer.Option(min=2, max=30, help="Simulated days; the first day is not counted.")] = 4,
    cold_start: Annotated[float, typer.Option(min=0, max=3600, help="Cold start of an endpoint (s).")] = 300.0,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 1,
    out: Annotated[Path, typer.Option(help="Output file (JSON).")] = Path("out/bench/scaling.json"),
) -> None:
    """Compare recommended capacity with a reactive autoscaler over days with a surge and the loss of a region."""
    console = Console()
    found = compare(days=days, seed=seed, cold_start_s=cold_start)
    table = Table(title=f"{days - 1} days after the first, three regions, cold start {cold_start:g} s")
    table.add_column("autoscaler")
    for column in ("time above target", "served away", "no slot", "no slot in the loss", "GPU hours"):
        table.add_column(column, justify="right")
    for row in found:
        shares = (row.above_target_share, row.away_share, row.unserved_share, row.unserved_in_loss_share)
        table.add_row(row.name, *(f"{share:.2%}" for share in shares), f"{row.gpu_hours:.0f}")
    console.print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    settings = {"days": days, "cold_start_s": cold_start, "seed": seed}
    out.write_bytes(msgspec.json.format(msgspec.json.encode({"settings": settings, "autoscalers": found}), indent=1))
    console.print(f"results: {out}")
