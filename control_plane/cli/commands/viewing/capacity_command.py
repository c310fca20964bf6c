"""`penstock capacity`: show the endpoints that each region should have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from control_plane.cli.command_options import ReadClient, with_fleet_options
from control_plane.cli.output import Output, OutputOption, print_as, table_of
from control_plane.page import Page
from control_plane.status.status import StandbyStatus
from penstock.scaling.recommender import Recommendation
from penstock.scaling.replicas import Cause
from penstock.scaling.standby import Takeover

LIMIT = 500
"""Page size of the requests."""

MAX_NAMES = 3
"""Maximum number of endpoints to drain that the table names; `--output json` has all of them."""


@with_fleet_options
def capacity(
    api: ReadClient,
    region: Annotated[str | None, typer.Option(help="Limit to this region.")] = None,
    model: Annotated[str | None, typer.Option(help="Limit to this model.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the recommended number of endpoints by region and model, with the cause and the endpoints to drain."""
    wanted = {"region": region, "model": model, "limit": LIMIT}
    found = api.listed("/v1/capacity/recommendations", Page[Recommendation], wanted)
    standby = None
    if output is Output.TABLE:
        standby = api.request("GET", "/v1/capacity/takeover").decoded(StandbyStatus).takeover
    print_as(output, found, lambda: _view(found, standby))


def _view(found: Sequence[Recommendation], standby: Takeover | None = None) -> RenderableType:
    words, numbers = ("region", "model"), ("endpoints", "desired", "cost/h", "demand", "forecast")
    table = table_of(*words, *numbers, "because", "drain", "replace", title="Capacity", right=numbers)
    for row in found:
        change = row.desired_endpoints - row.endpoints
        colour = "green" if change == 0 else "bold red" if change > 0 else "yellow"
        table.add_row(
            row.region,
            row.model,
            str(row.endpoints),
            Text(str(row.desired_endpoints), colour),
            f"{row.cost_per_hour:,.2f}{' spot' if row.is_spot else ''}",
            f"{row.requests_per_s:.1f}/s",
            f"{row.forecast_per_s:.1f}/s",
            f"loss of {row.lost}" if row.cause is Cause.REGION_LOSS else row.cause.value,
            _names(row.drain),
            _names(row.dead),
        )
    return table if standby is None else Group(table, _takeover(standby))


def _takeover(standby: Takeover) -> str:
    ready = "not yet" if standby.ready_after_s is None else f"after {standby.ready_after_s:.0f} s"
    ended = "not yet" if standby.ended_after_s is None else f"after {standby.ended_after_s:.0f} s"
    return f"Standby regions took over from {', '.join(standby.lost)}: endpoints ready {ready}; regions back {ended}."


def _names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "") or "-"
