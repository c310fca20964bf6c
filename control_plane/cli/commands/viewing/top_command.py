"""`penstock top`: the busiest regions, pools, endpoints and tenants, refreshed until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from control_plane.cli.command_options import ReadClient, with_fleet_options
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.repeated_output import show_repeatedly
from control_plane.cli.views.top_view import Top, top_view
from control_plane.status.endpoint_status import EndpointPage

LIMIT = 500
"""Page size of the requests."""

MAX_ROWS = 200


@with_fleet_options
def top(
    api: ReadClient,
    region: Annotated[str | None, typer.Option(help="Limit pools, endpoints and tenants to this region.")] = None,
    rows: Annotated[
        int, typer.Option(min=1, max=MAX_ROWS, help="Maximum number of pools, endpoints and tenants.")
    ] = 15,
    every: Annotated[float, typer.Option(min=0.5, max=3600.0, help="Seconds between two refreshes.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.", show_default=False)] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the busiest regions, pools, endpoints and tenants, until Ctrl-C."""

    def fetch() -> Top:
        wanted = {"limit": LIMIT, **({} if region is None else {"region": region})}
        return Top.of(api.status(), api.listed("/v1/endpoints", EndpointPage, wanted), region, rows)

    if once:
        found = fetch()
        print_as(output, found, lambda: top_view(found))
    else:
        show_repeatedly("top", fetch, top_view, output, every)
