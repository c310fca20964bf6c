"""Simulates the contests of `bench-live` and compares the figures: `make calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from lab.bench.live.bench_live_report import LiveResults
from lab.refusal import refuse
from lab.traces.trace import TraceError
from tests.calibration.calibration import WITHIN, CannotCompare, Comparison, compare, misranked


def calibrate(
    live: Annotated[Path, typer.Option(help="Results of bench-live.")] = Path("out/bench/live.json"),
    data: Annotated[Path, typer.Option(help="Directory of the traces of bench-live.")] = Path("../shared/data/traces"),
    out: Annotated[Path, typer.Option(help="Output file (JSON).")] = Path("out/bench/calibration.json"),
) -> None:
    """Simulate the contests of a live benchmark, and compare p50 and p99. Exit code 1: a ranking differs."""
    try:
        comparisons = compare(msgspec.json.decode(live.read_bytes(), type=LiveResults), data)
    except OSError as error:
        refuse("calibrate", f"--live {live}: {error.strerror}; run `make bench-live` first")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        refuse("calibrate", f"--live {live}: {error}; no result of this version of bench-live")
    except (CannotCompare, TraceError) as error:
        refuse("calibrate", f"--live {live}: {error}")
    wrong = misranked(comparisons)
    console = Console()
    console.print(_table(comparisons))
    agreeing = sum(comparison.agrees for comparison in comparisons)
    console.print(f"{agreeing} of {len(comparisons)} figures agree within {WITHIN:.0%}.")
    for pair in wrong:
        console.print(f"ranking differs: {pair}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode({"figures": comparisons, "misranked": wrong}), indent=1))
    console.print(f"results: {out}")
    raise typer.Exit(1 if wrong else 0)


def _table(comparisons: list[Comparison]) -> Table:
    table = Table(title="live and simulated, in s of the modelled hardware")
    for column in ("workload", "load", "instances", "balancer", "figure", "live", "simulated", "ratio"):
        table.add_column(column, justify="left" if column in ("workload", "balancer", "figure") else "right")
    for comparison in comparisons:
        ratio = f"{comparison.ratio:.2f}" if comparison.agrees else f"[red]{comparison.ratio:.2f}[/red]"
        table.add_row(
            comparison.workload,
            f"{comparison.load:.0%}",
            str(comparison.instances),
            comparison.system,
            comparison.figure,
            f"{comparison.live:.3f}",
            f"{comparison.simulated:.3f}",
            ratio,
        )
    return table


if __name__ == "__main__":
    typer.run(calibrate)
