"""Results of every benchmark: a JSON file, tables, and the machine's state."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

Row = TypeVar("Row")
Columns = Sequence[tuple[str, Callable[[Row], str]]]
"""Header and cell of each column."""

MAX_LOAD_AVERAGE = 0.5
"""A higher load average in the minute before a run means that other processes used the machine."""


class Measured(msgspec.Struct, frozen=True):
    """One figure of several rounds."""

    median: float
    least: float
    most: float

    @property
    def spread(self) -> float:
        """Range of the rounds, as a share of the median."""
        return (self.most - self.least) / abs(self.median) if self.median else 0.0


class Goal(msgspec.Struct, frozen=True):
    """A performance goal, and whether this run meets it."""

    what: str
    limit: float
    measured: float | None
    """None if not measured."""
    kept: bool | None


class Machine(msgspec.Struct, frozen=True):
    """The machine and its load before the benchmark."""

    processor: str
    cores: int
    kernel: str
    load_average_before: float
    """Over the minute before the run."""
    began_at: str
    """ISO 8601, UTC."""


def measured(values: Sequence[float], digits: int = 3) -> Measured:
    """Return the median and the extremes of the rounds."""
    return Measured(round(median(values), digits), round(min(values), digits), round(max(values), digits))


def goal(what: str, limit: float, value: float | None) -> Goal:
    """A goal that is met by a value of at most `limit`."""
    return Goal(
        what, round(limit, 3), None if value is None else round(value, 3), None if value is None else value <= limit
    )


def this_machine() -> Machine:
    """Describe the machine. Must be called before the load starts."""
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        kernel=platform.release(),
        load_average_before=round(os.getloadavg()[0], 2),
        began_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def write_results(path: Path, results: object) -> None:
    """Write the JSON file and create its directory; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column is text and whose other columns are figures."""
    shown = Table(title=title, title_justify="left", title_style="bold")
    for number, name in enumerate(header):
        shown.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        shown.add_row(*row)
    return shown


def columns_table(title: str, columns: Columns[Row], rows: Iterable[Row]) -> Table:
    """Return a table whose columns compute their cells from the rows."""
    return table(title, [header for header, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


def goals_table(goals: Iterable[Goal]) -> Table:
    """Return the goals as a table."""
    words = {True: "kept", False: "missed", None: "not measured"}
    columns: Columns[Goal] = (
        ("goal", lambda target: target.what),
        ("at most", lambda target: f"{target.limit:g}"),
        ("measured", lambda target: "" if target.measured is None else f"{target.measured:g}"),
        ("", lambda target: words[target.kept]),
    )
    return columns_table("Goals", columns, goals)


def closing_line(machine: Machine, out: Path) -> str:
    """Return the path of the results, with a warning if the machine was busy before the run."""
    shared = machine.load_average_before > MAX_LOAD_AVERAGE
    warning = (
        f" Load average {machine.load_average_before} before the run: other processes used the machine, expect noise."
    )
    return f"Results in {out}.{warning if shared else ''}"


def show(*tables: Table) -> None:
    """Print tables to the terminal."""
    console = Console(width=None if os.isatty(1) else 120)
    for shown in tables:
        console.print(shown)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
