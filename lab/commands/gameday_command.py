"""The command `penstock-lab gameday`: its options, errors and exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from adapters.servers.errors import ServerError
from lab.gameday.credential_faults import can_change_clocks
from lab.gameday.fault_catalogue import FAULTS
from lab.gameday.gameday_run import conclude, run_gamedays
from lab.open_files import allow_many_open_files
from lab.refusal import refuse


def gameday(
    names: Annotated[list[str] | None, typer.Argument(help="Faults, in order; default: all.")] = None,
    out: Annotated[Path, typer.Option(help="Directory of the report and the logs.")] = Path("out/gameday"),
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 2026,
) -> None:
    """Inject faults into a fleet under load, one at a time. Exit code 0: each had the expected outcome."""
    allow_many_open_files()
    chosen = names or list(FAULTS)
    unknown = [name for name in chosen if name not in FAULTS]
    if unknown:
        refuse("gameday", f"unknown fault {unknown[0]!r}; the faults are {', '.join(FAULTS)}")
    console = Console()
    if not names and not can_change_clocks():
        chosen = [name for name in chosen if not FAULTS[name].clocks]
        console.print("clock faults are skipped; install the package libfaketime to run them", highlight=False)
    clocks = {process for name in chosen for process in FAULTS[name].clocks}
    try:
        results = uvloop.run(run_gamedays([FAULTS[name] for name in chosen], out, seed, console, clocks))
        passed = conclude(results, out, console, "every fault had the expected outcome")
    except (ServerError, OSError) as error:
        refuse("gameday", str(error))
    raise typer.Exit(0 if passed else 1)
