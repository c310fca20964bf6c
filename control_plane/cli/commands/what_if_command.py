"""`penstock what-if`: evaluate another policy, overrides, or the loss of regions, on the fleet as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from control_plane.cli.bundle_arguments import read_bundle
from control_plane.cli.command_options import FleetOptions, with_fleet_options
from control_plane.cli.comparison_options import (
    AlreadyLostOption,
    FleetFileOption,
    GrownDemandOption,
    LostOption,
    TraceOption,
    divided_demand,
    given_demand,
    given_fleet,
)
from control_plane.cli.error_output import EXIT_USAGE, UsageFault, exit_on_error, fail
from control_plane.cli.output import Output, OutputOption, print_json, print_view
from control_plane.cli.views.simulation_view import live_view
from control_plane.policy.bundle_errors import PolicyRefused

if TYPE_CHECKING:
    from penstock.what_if.demand_outcomes import Capacity

TIMEOUT_S = 60.0
"""Time limit (s) of an evaluation by a control plane."""


@with_fleet_options
def what_if(
    fleet: FleetOptions,
    policy: Annotated[
        str | None,
        typer.Option(help="Proposed bundle: folder or REPOSITORY@REF:FOLDER (default: policy in force)."),
    ] = None,
    lost: LostOption = None,
    already_lost: AlreadyLostOption = None,
    drain: Annotated[list[str] | None, typer.Option(help="Region that is drained; may be repeated.")] = None,
    fail_over: Annotated[list[str] | None, typer.Option(help="Region that is failed over; may be repeated.")] = None,
    lift: Annotated[list[str] | None, typer.Option(help="Id of an override that is lifted; may be repeated.")] = None,
    demand: GrownDemandOption = None,
    trace: TraceOption = None,
    fleet_file: FleetFileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the fleet as it is with a change: moves, round trips, cost, refusals.

    The change is another policy, overrides that are set or lifted, the loss of regions, growth of demand, or several of
    these. Overrides, drains and maintenance windows in force are in effect on both sides. Exit with 1 where guard
    rails would refuse an override.
    """
    # Imported late, because it imports the planner.
    from control_plane.status.query_responses import WhatIfResponse

    with exit_on_error("what-if"):
        overrides: list[dict[str, Any]] = [{"kind": "drain", "region": region} for region in drain or ()]
        overrides += [{"kind": "fail_over", "region": region} for region in fail_over or ()]
        file, growth = divided_demand(demand)
        if policy is None and not lost and not overrides and not lift and not growth:
            raise UsageFault("give a change: --policy, --lost, --drain, --fail-over, --lift or --demand x1.5")
        try:
            files = read_bundle(policy) if policy is not None else None
        except PolicyRefused as refused:
            fail("what-if", str(refused), EXIT_USAGE, errors=refused.errors)
        asked, capacity = given_demand(file, trace), given_fleet(fleet_file)
        with fleet.connect(timeout_s=TIMEOUT_S) as api:
            change: dict[str, Any] = {
                "files": files,
                "overrides": overrides,
                "lost": lost or [],
                "lost_before": already_lost or [],
                "lift": lift or [],
            }
            # Control planes of earlier releases refuse fields that they do not know, so these are omitted where empty.
            if growth:
                change["growth"] = growth
            if asked is not None:
                change["demand"] = [
                    {field: value for field, value in msgspec.to_builtins(group).items() if value is not None}
                    for group in asked
                ]
            if capacity is not None:
                change["fleet"] = [_row(pool) for pool in capacity]
            answer = api.request("POST", "/v1/what-if", body=change)
            found = answer.decoded(WhatIfResponse)
    if output is Output.JSON:
        print_json(answer.body)
    else:
        print_view(live_view(found))
    if found.rejections:
        raise typer.Exit(1)


def _row(pool: Capacity) -> dict[str, Any]:
    fields = ("region", "model", "slots", "service_s", "slots_per_endpoint")
    row = {field: getattr(pool, field) for field in fields}
    return row | {"burst_slots": pool.burst_slots} if pool.burst_slots else row
