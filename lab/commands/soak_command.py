"""The command `penstock-lab soak`: random faults on one fleet for a given time, with a check of memory growth."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from adapters.servers.errors import ServerError
from lab.demo.findings import finding
from lab.gameday.fault import Fault
from lab.gameday.fault_catalogue import FAULTS
from lab.gameday.gameday_run import DayResult, conclude, run_gamedays
from lab.open_files import allow_many_open_files
from lab.refusal import refuse

MAX_GROWTH = 0.2
"""Maximum relative growth of a process's memory from the first to the last day."""

MAX_GROWTH_MIB = 16.0
"""Growth (MiB) that is always permitted, because caches fill and the allocator retains pages."""


def soak(
    minutes: Annotated[float, typer.Option(min=1.0, help="Duration (min); no day begins after its end.")] = 60.0,
    out: Annotated[Path, typer.Option(help="Directory of the report and the logs.")] = Path("out/soak"),
    seed: Annotated[int, typer.Option(help="Seed of the workload and of the order of faults.")] = 2026,
) -> None:
    """Inject random faults into a fleet under load. Exit code 0: all outcomes were as expected, memory is stable."""
    allow_many_open_files()
    console = Console()
    try:
        results = uvloop.run(run_gamedays(_faults(minutes * 60.0, Random(seed)), out, seed, console))
        results.append(memory_result(results))
        passed = conclude(results, out, console, f"{len(results) - 1} days, all as expected")
    except (ServerError, OSError) as error:
        refuse("soak", str(error))
    raise typer.Exit(0 if passed else 1)


def memory_result(days: Sequence[DayResult]) -> DayResult:
    """Check that each process's memory on the last day is within the limit of its memory on the first day."""
    first, last = days[0].memory_mib, days[-1].memory_mib
    findings = tuple(
        finding(
            name,
            last[name] <= max(first[name] * (1.0 + MAX_GROWTH), first[name] + MAX_GROWTH_MIB),
            len(days) - 1,
            f"{first[name]:.0f} MiB after the first day, {last[name]:.0f} MiB after the last",
        )
        for name in sorted(first.keys() & last.keys())
    )
    return DayResult("memory", f"resident memory over {len(days)} days", findings, sum(day.requests for day in days))


def _faults(duration_s: float, rng: Random) -> Iterator[Fault]:
    """Yield all faults except clock faults in repeated random permutations until `duration_s` has elapsed."""
    faults = [fault for fault in FAULTS.values() if not fault.clocks]
    until = time.monotonic() + duration_s
    while True:
        for fault in rng.sample(faults, len(faults)):
            if time.monotonic() > until:
                return
            yield fault
