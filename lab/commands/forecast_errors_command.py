"""The command `penstock-lab forecast-errors`, which measures the demand forecast on real traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lab.bench.bench_results import Columns, columns_table, write_results
from lab.simulate.forecast_errors import Errors, forecast_errors, real_traces

COLUMNS: Columns[Errors] = (
    ("trace", lambda row: row.trace),
    ("ahead", lambda row: f"{row.horizon_s / 60:.0f} min"),
    ("forecast", lambda row: f"{row.forecast:.1%}"),
    ("last week", lambda row: f"{row.last_week:.1%}"),
    ("newest + last week's change", lambda row: f"{row.last_week_change:.1%}"),
    ("newest", lambda row: f"{row.newest:.1%}"),
)


def forecast_errors_command(
    out: Annotated[Path, typer.Option(help="Output file (JSON).")] = Path("out/bench/forecast.json"),
) -> None:
    """Compare the demand forecast with naive forecasts on the last week of real traces of two and five weeks."""
    console = Console()
    found = [errors for trace in real_traces() for errors in forecast_errors(trace)]
    console.print(columns_table("mean absolute error of a held-out week, relative to its mean rate", COLUMNS, found))
    write_results(out, {"errors": found})
    console.print(f"results: {out}")
