"""`penstock status`: the state of the fleet, once or continuously."""

from __future__ import annotations

from typing import Annotated

import typer

from control_plane.cli.command_options import ReadClient, with_fleet_options
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.repeated_output import show_repeatedly
from control_plane.cli.views.status_view import status_view
from control_plane.status.status import Status

WATCH_S = 1.0
"""Refresh interval (s) of `penstock status --watch`."""


@with_fleet_options
def status(
    api: ReadClient,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the state of the fleet: regions, load, service objectives, and which region serves which."""
    if watch:
        show_repeatedly("status", api.status, status_view, output, WATCH_S)
    else:
        _print(api.status(), output)


def _print(status: Status, output: Output) -> None:
    print_as(output, status, lambda: status_view(status))
