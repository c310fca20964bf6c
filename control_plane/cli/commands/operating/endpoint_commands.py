"""`penstock endpoint`: drain single endpoints, and return them to service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from control_plane.cli.command_options import ChangeClient, ReasonOption, with_fleet_options
from control_plane.cli.commands.operating.overrides_commands import (
    DurationOption,
    ForceOption,
    RegionArgument,
    lift_override,
    list_overrides,
    print_overrides,
    seconds_of,
    set_override,
)
from control_plane.cli.error_output import EXIT_FAILED, fail
from control_plane.cli.output import Output, OutputOption
from control_plane.overrides.override_resource import OverrideState
from penstock.overrides.overrides import OverrideKind

app = typer.Typer(no_args_is_help=True, help="Drain endpoints, and return them to service.")

EndpointArgument = Annotated[
    str, typer.Argument(help="Name of the endpoint, as `penstock endpoints` prints it.", show_default=False)
]


@app.command()
@with_fleet_options
def drain(
    api: ChangeClient,
    region: RegionArgument,
    endpoint: EndpointArgument,
    reason: ReasonOption,
    duration: DurationOption = None,
    force: ForceOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Drain an endpoint: it receives no new requests, and completes its running ones."""
    body: dict[str, Any] = {
        "kind": OverrideKind.DRAIN_ENDPOINT.value,
        "region": region,
        "endpoint": endpoint,
        "reason": reason,
    }
    body |= {"expires_in_s": seconds_of(duration or "none"), "force": force}
    print_overrides(api, [set_override(api, "endpoint drain", body)], output)


@app.command()
@with_fleet_options
def undrain(
    api: ChangeClient,
    region: RegionArgument,
    endpoint: EndpointArgument,
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Lift every drain of an endpoint."""
    drains = [
        status.override.id
        for status in list_overrides(api)
        if (status.override.region, status.override.endpoint) == (region, endpoint)
        and status.state is OverrideState.ACTIVE
    ]
    if not drains:
        fail("endpoint undrain", f"{region}/{endpoint} is not drained by an operator", EXIT_FAILED)
    print_overrides(api, [lift_override(api, id, reason) for id in drains], output)
