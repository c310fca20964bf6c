"""`penstock status`: the state of the fleet, once or continuously."""

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
from control_plane.cli.views.status_view import status_view
from control_plane.status.status import Status

WATCH_S = 1.0
"""Refresh interval (s) of `penstock status --watch`."""


@with_fleet_options
def status(
    fleet: FleetOptions,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the state of the fleet: regions, load, service objectives, and which region serves which."""
    with exit_on_error("status"), fleet.connect() as api:
        if watch:
            _watch(api, output)
        else:
            _print(api.status(), output)


def _watch(api: ApiClient, output: Output) -> None:
    """Print the status every second, and continue while no control plane answers."""
    console = PlainConsole()
    # A file or pipe gets one table after the other: a live view would only write the last one.
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
