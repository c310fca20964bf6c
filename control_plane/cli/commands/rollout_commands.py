"""`penstock rollout`: how a new policy reaches the fleet, and how to halt, resume, promote and roll it back."""

from __future__ import annotations

import typer

from control_plane.cli.api_client import ApiClient
from control_plane.cli.connection_options import Fleet, for_fleet
from control_plane.cli.error_output import telling
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.reason_option import ReasonOption
from control_plane.cli.rollout_view import rollout_view, rollouts_view
from control_plane.rollout.rollout_resource import RolloutPage, RolloutStatus, RolloutSummary

app = typer.Typer(no_args_is_help=True, help="See and steer how a new policy reaches the fleet.")

CURRENT = "/v1/rollouts/current"
LIMIT = 500
"""Rollouts of one list; the control plane keeps fewer."""


@app.command()
@for_fleet
def show(
    fleet: Fleet,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the rollout under way, or the last one: how far it is, what it changes, who runs what."""
    with telling("rollout show"), fleet.connect() as api:
        status: RolloutStatus = api.ask("GET", CURRENT).decoded(RolloutStatus)
    print_as(output, status, lambda: rollout_view(status))


@app.command("list")
@for_fleet
def list_(
    fleet: Fleet,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the last rollouts, newest first."""
    with telling("rollout list"), fleet.connect() as api:
        page: RolloutPage = api.ask("GET", "/v1/rollouts", params={"limit": LIMIT}).decoded(RolloutPage)
    print_as(output, list(page.items), lambda: rollouts_view(page.items))


@app.command()
@for_fleet
def halt(
    fleet: Fleet,
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let no further region follow until it is resumed; those that try the policy go on."""
    with telling("rollout halt"), fleet.connect() as api:
        ordered(api, f"{CURRENT}/halt", reason, output)


@app.command()
@for_fleet
def resume(
    fleet: Fleet,
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Go on with a rollout that is held."""
    with telling("rollout resume"), fleet.connect() as api:
        ordered(api, f"{CURRENT}/resume", reason, output)


@app.command()
@for_fleet
def promote(
    fleet: Fleet,
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let every region obey the policy now, whatever is not proven yet."""
    with telling("rollout promote"), fleet.connect() as api:
        ordered(api, f"{CURRENT}/promote", reason, output)


@app.command()
@for_fleet
def rollback(
    fleet: Fleet,
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take the policy back everywhere; it does not begin by itself again."""
    with telling("rollout rollback"), fleet.connect() as api:
        ordered(api, f"{CURRENT}/rollback", reason, output)


def ordered(api: ApiClient, path: str, reason: str, output: Output) -> None:
    """Order something of the rollout as it is now, and print what comes of it."""
    seen = api.ask("GET", CURRENT, changes=True).headers["etag"]
    answer = api.ask("POST", path, body={"reason": reason}, headers={"if-match": seen}, changes=True)
    after: RolloutSummary = answer.decoded(RolloutSummary)
    print_as(output, after, lambda: rollouts_view([after]))
