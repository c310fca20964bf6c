"""`penstock jobs`: the batches and asynchronous requests of the regions, with the forecast of their end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import RenderableType

from control_plane.cli.agent_client import JobsStatus, KeyRejected, fetch_jobs
from control_plane.cli.api_client import Unreachable
from control_plane.cli.command_options import FleetOptions, with_fleet_options
from control_plane.cli.error_output import EXIT_FAILED, exit_on_error, print_error
from control_plane.cli.output import Output, OutputOption, print_as, table_of

UNKNOWN: Final = "not known until a request has ended"


@with_fleet_options
def jobs(
    fleet: FleetOptions,
    region: Annotated[str | None, typer.Option(help="Limit to this region.")] = None,
    agents_key_file: Annotated[
        Path | None,
        typer.Option(help="File with your API key for agents (default: $PENSTOCK_AGENTS_KEY_FILE)."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the batches that agents run and the asynchronous requests that wait, with the forecast of their end."""
    with exit_on_error("jobs"):
        access = fleet.agent_access(agents_key_file)
        with fleet.connect() as api:
            agents = api.status().agents
        found = {}
        is_rejected = False
        for agent in sorted(agents, key=lambda each: (each.region, each.name)):
            if agent.admin_url is None or region not in (None, agent.region):
                continue
            name = f"{agent.region}/{agent.name}"
            try:
                found[name] = fetch_jobs(agent.admin_url, access)
            except (Unreachable, KeyRejected) as error:
                # Regions on machines of others may have keys of their own.
                is_rejected = is_rejected or isinstance(error, KeyRejected)
                print_error("jobs", f"{name} is omitted: {error}")
        if is_rejected and not found:
            raise typer.Exit(EXIT_FAILED)
        print_as(output, found, lambda: _view(found, time.time()))


def _view(found: Mapping[str, JobsStatus], now: float) -> RenderableType:
    numbers = ("done", "failed", "of", "expected end", "deadline")
    table = table_of("agent", "store", "job", *numbers, title="Jobs", right=numbers)
    for agent, status in found.items():
        store = status.store or "none"
        if status.store_problem:
            store = f"{store}: {status.store_problem}"
        for row in _rows(status, now):
            table.add_row(agent, store, *row)
    return table


def _rows(status: JobsStatus, now: float) -> Iterator[tuple[str, ...]]:
    for batch, progress in status.batches.items():
        counts = (str(progress.completed), str(progress.failed), str(progress.total))
        expected = _in(progress.expected_completion_at, now, UNKNOWN)
        yield batch, *counts, expected, _in(progress.expires_at, now)
    if not status.batches or status.requests or status.waiting_requests:
        starts = _in(status.last_request_starts_at, now, f"at a time that is {UNKNOWN}")
        waiting = (
            f"; the last of {status.waiting_requests} that wait starts {starts}" if status.waiting_requests else ""
        )
        yield f"{status.requests} requests run{waiting}", "", "", "", "", ""


def _in(at: float | None, now: float, otherwise: str = "-") -> str:
    return otherwise if at is None else f"in {max(0.0, at - now):,.0f} s"
