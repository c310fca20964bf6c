"""`penstock plan`: show, list and compare traffic plans."""

from __future__ import annotations

from typing import Annotated

import typer

from adapters.error_text import suggest
from control_plane.cli.api_client import ApiClient
from control_plane.cli.command_options import ReadClient, with_fleet_options
from control_plane.cli.error_output import UsageFault
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.views.plan_view import plan_diff_view, plan_view, plans_view
from control_plane.page import Page
from penstock.planning.plan import RegionPlan
from penstock.planning.plan_history import PastPlan, PlanDiff, PlanSummary

app = typer.Typer(no_args_is_help=True, help="Show, list and compare traffic plans.")

MAX_LISTED = 500
"""Maximum number of plans requested; the control plane stores fewer."""


@app.command()
@with_fleet_options
def show(
    api: ReadClient,
    generation: Annotated[
        int | None, typer.Argument(help="Generation, as `plan list` prints it (default: the plan in force).")
    ] = None,
    origin: Annotated[str | None, typer.Option(help="Limit to the requests that arrive in this region.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a plan: arcs with their reasons, and fallbacks. Past plans have only arcs."""
    slices = _slices(api, generation)
    if origin is not None:
        if origin not in slices:
            raise UsageFault(f"the plan has no region {origin!r}; {suggest(origin, slices, 'it is empty')}")
        slices = {origin: slices[origin]}
    print_as(output, slices, lambda: plan_view(slices))


@app.command("list")
@with_fleet_options
def list_(
    api: ReadClient,
    output: OutputOption = Output.TABLE,
) -> None:
    """List recent plans, newest first: time, number of changed arcs, and related events."""
    plans = _plans(api)
    print_as(output, plans, lambda: plans_view(plans))


@app.command()
@with_fleet_options
def diff(
    api: ReadClient,
    before: Annotated[
        int | None, typer.Argument(help="Generation of the first plan (default: the one before the newest).")
    ] = None,
    after: Annotated[int | None, typer.Argument(help="Generation of the second plan (default: the newest).")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare two plans: arcs whose share changed, with the reasons."""
    if before is None:
        plans = _plans(api)
        if len(plans) < 2:
            raise UsageFault("there are not yet two plans to compare; see `penstock plan list`")
        before = plans[1].generation
    answer = api.request("GET", "/v1/plans/diff", params={"before": before, "after": after})
    changed = answer.decoded(PlanDiff)
    print_as(output, answer.body, lambda: plan_diff_view(changed))


def _slices(api: ApiClient, generation: int | None) -> dict[str, RegionPlan]:
    if generation is None:
        return api.request("GET", "/v1/plans/current").decoded(dict[str, RegionPlan])
    past = api.request("GET", f"/v1/plans/{generation}").decoded(PastPlan)
    return past.slices


def _plans(api: ApiClient) -> tuple[PlanSummary, ...]:
    page = api.request("GET", "/v1/plans", params={"limit": MAX_LISTED}).decoded(Page[PlanSummary])
    return page.items
