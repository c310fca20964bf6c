"""`penstock what-if`: what would become of the fleet's demand under another policy, or without some regions."""

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
"""How long (s) the planner may think."""


@with_fleet_options
def what_if(
    fleet: FleetOptions,
    policy: Annotated[
        str | None, typer.Option(help="The proposed bundle: a folder, or REPOSITORY@REF:FOLDER; else the one in force.")
    ] = None,
    lost: Annotated[list[str] | None, typer.Option(help="A region that has failed then; may be given again.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put today and a proposal side by side on what the fleet can run now: who moves, how far, at what cost."""
    # Here, so that the other commands do not wait for the planner to load, which says what its answers look like.
    from control_plane.status.what_if_response import WhatIf

    with exit_on_error("what-if"):
        if policy is None and not lost:
            raise UsageFault("give --policy, --lost, or both: what is to be different?")
        try:
            files = read_bundle(policy) if policy is not None else None
        except PolicyRefused as refused:
            fail("what-if", str(refused), EXIT_USAGE, errors=refused.errors)
        with fleet.connect(timeout_s=TIMEOUT_S) as api:
            answer = api.request("POST", "/v1/what-if", body={"files": files, "lost": lost or []})
            found: WhatIf = answer.decoded(WhatIf)
    if output is Output.JSON:
        print_json(answer.body)
        return
    print_view(simulated_view(found.before, found.after, found.moves))
    print_view(Text(f"demand {found.demand}; fleet {found.fleet}", "dim"))
