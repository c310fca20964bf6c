"""Runs every query of dashboards and rules on a Prometheus that scrapes a fleet: `make check-dashboards`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from adapters.servers.errors import ServerError
from lab.open_files import allow_many_open_files
from tests.dashboard_check.check_run import NoQueries, check
from tests.dashboard_check.panel_queries import UnknownVariable


def check_dashboards(
    dashboards: Annotated[Path, typer.Option(help="Directory of dashboards (*.json) and rules (*.yaml).")] = Path(
        "dashboards"
    ),
    out: Annotated[Path, typer.Option(help="Directory of report.json and the logs.")] = Path("out/dashboards"),
) -> None:
    """Run every query of dashboards and rules on a Prometheus that scrapes a fleet. Exit code 0: all returned data."""
    allow_many_open_files()
    console = Console()
    try:
        report = uvloop.run(check(dashboards, out, console))
    except (NoQueries, UnknownVariable, ServerError, OSError) as error:
        print(f"check-dashboards: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    _print(report, console, out)
    raise typer.Exit(0 if report["passed"] else 1)


def _print(report: dict[str, Any], console: Console, out: Path) -> None:
    lines = [f"no data: {row['title']}: {row['expression']} {row.get('error', '')}" for row in report["empty"]]
    lines += [f"no data, permitted: {row['title']}: {row['may_be_empty_because']}" for row in report["permitted_empty"]]
    lines += [f"rule cannot be evaluated: {rule}" for rule in report["broken_rules"]]
    lines += [f"not scraped: {target}" for target in report["missing_targets"]]
    counts = ", ".join(f"{kind} {count}" for kind, count in report["with_data"].items())
    for line in [*lines, f"queries with data: {counts}; {out}/report.json"]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(check_dashboards)
