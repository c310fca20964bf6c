"""`penstock what-if`: evaluate another policy, or the loss of regions, on the fleet's demand."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from control_plane.cli.bundle_arguments import read_bundle
from control_plane.cli.command_options import FleetOptions, with_fleet_options
from control_plane.cli.error_output import EXIT_USAGE, UsageFault, exit_on_error, fail
from control_plane.cli.output import Output, OutputOption, print_json, print_view
from control_plane.cli.simulation_view import simulated_view
from control_plane.policy.bundle_errors import PolicyRefused

TIMEOUT_S = 60.0
"""Time limit (s) of the evaluation."""


@with_fleet_options
def what_if(
    fleet: FleetOptions,
    policy: Annotated[
        str | None,
        typer.Option(help="Proposed bundle: folder or REPOSITORY@REF:FOLDER (default: policy in force)."),
    ] = None,
    lost: Annotated[list[str] | None, typer.Option(help="Region that fails; may be repeated.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the current policy with another policy or the loss of regions: moves, round trips, cost, refusals."""
    # Imported late, because it imports the planner.
    from control_plane.status.query_responses import WhatIfResponse

    with exit_on_error("what-if"):
        if policy is None and not lost:
            raise UsageFault("give --policy, --lost, or both")
        try:
            files = read_bundle(policy) if policy is not None else None
        except PolicyRefused as refused:
            fail("what-if", str(refused), EXIT_USAGE, errors=refused.errors)
        with fleet.connect(timeout_s=TIMEOUT_S) as api:
            answer = api.request("POST", "/v1/what-if", body={"files": files, "lost": lost or []})
            found: WhatIfResponse = answer.decoded(WhatIfResponse)
    if output is Output.JSON:
        print_json(answer.body)
        return
    print_view(simulated_view(found.before, found.after, found.moves))
    print_view(Text(f"demand {found.demand}; fleet {found.fleet}", "dim"))
