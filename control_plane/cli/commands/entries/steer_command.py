"""`penstock steer`: show the entry regions of a client."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from control_plane.cli.command_options import ReadClient, with_fleet_options
from control_plane.cli.output import Output, OutputOption, print_as, table_of
from control_plane.cli.views.explain_view import refusal_text
from penstock.routing.steering import SteeringAdvice


@with_fleet_options
def steer(
    api: ReadClient,
    ip: Annotated[str | None, typer.Argument(help="Address of the client.", show_default=False)] = None,
    country: Annotated[str | None, typer.Option(help="Country of the client instead, such as DE.")] = None,
    subdivision: Annotated[str | None, typer.Option(help="Subdivision of the country, such as BY.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Tenant of the client (default: only regions that every tenant may use).")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model that the client will request.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the permitted entry regions of a client, best first."""
    params = {"ip": ip, "country": country, "subdivision": subdivision, "tenant": tenant, "model": model}
    answer = api.request("GET", "/v1/steer", params=params)
    advice = answer.decoded(SteeringAdvice)
    print_as(output, answer.body, lambda: _view(advice))


def _view(advice: SteeringAdvice) -> RenderableType:
    table = table_of("region", "state", "round trip", "serves the model", title="Entry regions, best first")
    for entry in advice.entries:
        served = "" if entry.serves_model is None else "yes" if entry.serves_model else "forwards"
        trip = f"{entry.round_trip_ms:.0f} ms" if entry.round_trip_ms is not None else "?"
        table.add_row(entry.region, entry.state.value, trip, served)
    lines = [
        f"not {region.what}: {region.reason.value}{f', {region.detail}' if region.detail else ''}"
        for region in advice.rejected
    ]
    about = [f"residency {advice.residency}"] if advice.residency is not None else []
    about.append(f"keep for {advice.ttl_s:.0f} s")
    if advice.refusal is not None:
        return Group(refusal_text(advice.refusal), Text("\n".join([*lines, *about]), "dim"))
    return Group(table, Text("\n".join([*lines, *about]), "dim"))
