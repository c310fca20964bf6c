"""`penstock rollout`: show the rollout of a policy, and halt, resume, promote or roll it back."""

from __future__ import annotations

from collections.abc import Callable

import typer

from control_plane.cli.api_client import ApiClient
from control_plane.cli.command_options import ChangeOptions, FleetOptions, ReasonOption, with_fleet_options
from control_plane.cli.error_output import exit_on_error
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.views.rollout_view import rollout_view, rollouts_view
from control_plane.rollout.rollout_resource import RolloutPage, RolloutStatus, RolloutSummary

app = typer.Typer(no_args_is_help=True, help="Show and control the rollout of a policy.")

CURRENT = "/v1/rollouts/current"
LIMIT = 500
"""Maximum number of rollouts requested; the control plane keeps fewer."""


@app.command()
@with_fleet_options
def show(fleet: FleetOptions, output: OutputOption = Output.TABLE) -> None:
    """Show the current rollout, or the last one: its phase, its changes, and the policy that each agent runs."""
    with exit_on_error("rollout show"), fleet.connect() as api:
        status: RolloutStatus = api.request("GET", CURRENT).decoded(RolloutStatus)
    print_as(output, status, lambda: rollout_view(status))


@app.command("list")
@with_fleet_options
def list_(fleet: FleetOptions, output: OutputOption = Output.TABLE) -> None:
    """List the last rollouts, newest first."""
    with exit_on_error("rollout list"), fleet.connect() as api:
        page: RolloutPage = api.request("GET", "/v1/rollouts", params={"limit": LIMIT}).decoded(RolloutPage)
    print_as(output, list(page.items), lambda: rollouts_view(page.items))


def _action_command(action: str, help_text: str) -> Callable[..., None]:
    """Make the command that requests one action on the current rollout."""

    def run(fleet: ChangeOptions, reason: ReasonOption, output: OutputOption = Output.TABLE) -> None:
        with exit_on_error(f"rollout {action}"), fleet.connect() as api:
            request_action(api, f"{CURRENT}/{action}", reason, output)

    run.__doc__ = help_text
    return with_fleet_options(run)


_ACTIONS = {
    "halt": "Halt the rollout: no further region receives the policy until the rollout is resumed.",
    "resume": "Resume a rollout that is halted or held.",
    "promote": "Send the policy to every region now, without waiting for the remaining evidence.",
    "rollback": "Return every region to the stable policy. The rollout does not start again by itself.",
}

for _action, _help in _ACTIONS.items():
    app.command(_action)(_action_command(_action, _help))


def request_action(api: ApiClient, path: str, reason: str, output: Output, **options: bool) -> None:
    """POST an action on the current rollout, with its ETag, and print the resulting rollout.

    Args:
        options: further fields of the request.
    """
    etag = api.request("GET", CURRENT, changes=True).headers["etag"]
    response = api.request("POST", path, body={"reason": reason, **options}, headers={"if-match": etag}, changes=True)
    after: RolloutSummary = response.decoded(RolloutSummary)
    print_as(output, after, lambda: rollouts_view([after]))
