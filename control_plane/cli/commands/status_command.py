"""`penstock status`: the fleet as the leader sees it, once or every second."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Annotated

import typer
from rich.live import Live

from control_plane.cli.api_client import ApiClient, ApiError
from control_plane.cli.command_options import FleetOptions, with_fleet_options
from control_plane.cli.error_output import exit_on_error, print_error
from control_plane.cli.output import Output, OutputOption, PlainConsole, print_as
from control_plane.cli.status_view import status_view
from control_plane.status.status import Status

WATCH_S = 1.0
"""Time (s) between two looks of `penstock status --watch`."""


@with_fleet_options
def status(
    fleet: FleetOptions,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every second until Ctrl-C.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show regions, their state and load, service objectives, and who serves whom, as the leader sees it."""
    with exit_on_error("status"), fleet.connect() as api:
        if watch:
            _watch(api, output)
        else:
            _print(api.status(), output)


def _watch(api: ApiClient, output: Output) -> None:
    """Look again and again, also while nobody answers: that is when people watch."""
    console = PlainConsole()
    # What is no terminal gets one table after the other: it would see none before the end.
    in_place = output is Output.TABLE and console.is_terminal
    try:
        with Live(console=console, auto_refresh=False) if in_place else nullcontext() as live:
            while True:
                try:
                    status = api.status()
                except ApiError as error:
                    if error.is_usage_error:
                        raise
                    print_error("status", str(error))
                else:
                    if live is None:
                        _print(status, output)
                    else:
                        live.update(status_view(status), refresh=True)
                time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return


def _print(status: Status, output: Output) -> None:
    print_as(output, status, lambda: status_view(status))
