"""`penstock rollout`: show the rollout of a policy, and halt, resume, promote or roll it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from control_plane.cli.api_client import ApiClient
from control_plane.cli.command_options import ChangeClient, ReadClient, ReasonOption, with_fleet_options
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.views.rollout_view import model_rollout_line, rollout_view, rollouts_view
from control_plane.page import Page
from control_plane.rollout.model_rollout_resource import ModelRolloutSummary
from control_plane.rollout.rollout_resource import RolloutStatus, RolloutSummary

app = typer.Typer(no_args_is_help=True, help="Show and control the rollout of a policy.")

CURRENT = "/v1/rollouts/current"
MODELS = "/v1/rollouts/models"
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="Act on the rollout of a version: the name that clients request.", metavar="NAME"),
]
LIMIT = 500
"""Maximum number of rollouts requested; the control plane keeps fewer."""


@app.command()
@with_fleet_options
def show(api: ReadClient, output: OutputOption = Output.TABLE) -> None:
    """Show the current rollout, or the last one: its phase, its changes, and the policy that each agent runs."""
    status = api.request("GET", CURRENT).decoded(RolloutStatus)
    print_as(output, status, lambda: rollout_view(status))


@app.command("list")
@with_fleet_options
def list_(api: ReadClient, output: OutputOption = Output.TABLE) -> None:
    """List the last rollouts, newest first."""
    page = api.request("GET", "/v1/rollouts", params={"limit": LIMIT}).decoded(Page[RolloutSummary])
    print_as(output, list(page.items), lambda: rollouts_view(page.items))


def _action_command(action: str, help_text: str) -> Callable[..., None]:
    """Make the command that requests one action on the current rollout."""

    def run(
        api: ChangeClient, reason: ReasonOption, model: ModelOption = None, output: OutputOption = Output.TABLE
    ) -> None:
        if model is None:
            request_action(api, f"{CURRENT}/{action}", reason, output)
        else:
            _request_model_action(api, action, model, reason, output)

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


def _request_model_action(api: ApiClient, action: str, model: str, reason: str, output: Output) -> None:
    """POST an action on the rollout of a version, with its revision, and print the resulting state."""
    status = api.request("GET", CURRENT, changes=True).decoded(RolloutStatus)
    seen = {each.rollout.name: each.revision for each in status.models}
    # Without a revision, the control plane answers that there is no such rollout.
    headers = {"if-match": f'"{seen[model]}"'} if model in seen else {}
    body = {"name": model, "reason": reason}
    response = api.request("POST", f"{MODELS}/{action}", body=body, headers=headers, changes=True)
    after = response.decoded(ModelRolloutSummary)
    print_as(output, after, lambda: model_rollout_line(after))


def request_action(api: ApiClient, path: str, reason: str, output: Output, **options: bool) -> None:
    """POST an action on the current rollout, with its ETag, and print the resulting rollout.

    Args:
        options: further fields of the request.
    """
    etag = api.request("GET", CURRENT, changes=True).headers["etag"]
    response = api.request("POST", path, body={"reason": reason, **options}, headers={"if-match": etag}, changes=True)
    after = response.decoded(RolloutSummary)
    print_as(output, after, lambda: rollouts_view([after]))
