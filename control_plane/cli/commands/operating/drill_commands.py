"""`penstock drill`: evacuate a region and bring it back, or make the leader step down, on the live fleet."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.api_client import ApiClient, ApiRefused, Unreachable
from control_plane.cli.command_options import ChangeClient, ReadClient, ReasonOption, with_fleet_options
from control_plane.cli.commands.operating.overrides_commands import seconds_of
from control_plane.cli.error_output import EXIT_FAILED, UsageFault
from control_plane.cli.output import Output, OutputOption, print_as, table_of
from control_plane.drills.drill_resource import DrillReport
from control_plane.page import Page
from penstock.drills.drill_state import FINAL_PHASES, DrillPhase
from penstock.policy.kinds.operations import HOLD_S, MAX_BURN_RATE, Exercise
from penstock.policy.service_objective import within_text

app = typer.Typer(no_args_is_help=True, help="Exercise failures on the live fleet, safely.")

LIMIT = 500
"""Maximum number of drills requested; the control plane keeps fewer."""

POLL_S = 1.0
"""Interval (s) at which the drill under way is polled."""

MAX_FAILED_POLLS = 30
"""Maximum number of consecutive failed polls; polls can fail while the leadership changes or the store does not
answer."""

NumberArgument = Annotated[int, typer.Argument(help="Number of the drill.", show_default=False)]
HoldOption = Annotated[
    str | None, typer.Option("--hold", help=f"How long the region stays empty, such as 10m. Default: {HOLD_S:g}s.")
]
BurnRateOption = Annotated[
    float | None,
    typer.Option(
        help=f"Abort when the error budget of a model burns faster; 1 uses it up exactly. Default: {MAX_BURN_RATE:g}."
    ),
]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the drill is over.")]


@app.command()
@with_fleet_options
def evacuate(
    api: ChangeClient,
    region: Annotated[str, typer.Argument(help="Name of the region.", show_default=False)],
    reason: ReasonOption,
    hold: HoldOption = None,
    max_burn_rate: BurnRateOption = None,
    wait: WaitOption = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Evacuate a region, keep it empty, and return its traffic. Exit code 1 if the drill was refused or aborted."""
    hold_s = None if hold is None else seconds_of(hold, "--hold")
    if isinstance(hold_s, str):
        raise UsageFault("--hold none: a region that is evacuated by a drill returns; use `drain` to keep it empty")
    body = {
        "exercise": Exercise.EVACUATE_REGION.value,
        "region": region,
        "hold_s": hold_s,
        "max_burn_rate": max_burn_rate,
        "reason": reason,
    }
    _run(api, {field: value for field, value in body.items() if value is not None}, wait, output)


@app.command("step-down")
@with_fleet_options
def step_down(
    api: ChangeClient, reason: ReasonOption, wait: WaitOption = True, output: OutputOption = Output.TABLE
) -> None:
    """Make the leader step down, so that another control plane takes over.

    Exit code 1 if the drill was refused or aborted.
    """
    body = {"exercise": Exercise.STEP_DOWN.value, "reason": reason}
    _run(api, body, wait, output)


@app.command()
@with_fleet_options
def show(api: ReadClient, number: NumberArgument, output: OutputOption = Output.TABLE) -> None:
    """Show the report of a drill."""
    report = _get(api, number)
    print_as(output, report, lambda: drill_view(report))


@app.command("list")
@with_fleet_options
def list_(api: ReadClient, output: OutputOption = Output.TABLE) -> None:
    """List the last drills, newest first."""
    page = api.request("GET", "/v1/drills", params={"limit": LIMIT}).decoded(Page[DrillReport])
    print_as(output, list(page.items), lambda: _table(page.items))


@app.command()
@with_fleet_options
def abort(api: ChangeClient, number: NumberArgument, reason: ReasonOption, output: OutputOption = Output.TABLE) -> None:
    """Abort the drill under way: an evacuated region gets its traffic back along the failback ramp."""
    response = api.request("POST", f"/v1/drills/{number}/abort", body={"reason": reason}, changes=True)
    report = response.decoded(DrillReport)
    print_as(output, report, lambda: drill_view(report))


def drill_view(report: DrillReport) -> RenderableType:
    """Return the report of a drill: its results, and the phases that it entered."""
    facts = Text()
    facts.append(f"drill {report.number}: {_exercise(report)}, {report.phase.value.replace('_', ' ')}", "bold")
    facts.append(f"\n{report.reason} ({report.author})")
    facts.append(f"\nRTO {_seconds(report.rto_s)}, RPO {_rpo(report)}")
    if report.region is not None:
        facts.append(f", return {_seconds(report.return_s)}")
    facts.append(f"\n{report.requests} requests ended meanwhile, {report.failed_requests} of them failed")
    for objective in report.objectives:
        facts.append(
            f"\n{objective.model}: {objective.attained:.2%} {within_text(objective.limit_s, objective.measure)}"
            f" (objective {objective.share:.2%}), burn rate {objective.burn_rate:.2f}"
        )
    steps = table_of("at", "phase", "by", "why")
    for step in report.steps:
        steps.add_row(_at(step.at), step.phase.value.replace("_", " "), step.by or "-", step.why)
    return Group(facts, steps)


def _run(api: ApiClient, body: dict[str, Any], wait: bool, output: Output) -> None:
    newest = api.request("GET", "/v1/drills", params={"limit": 1}, changes=True).decoded(Page[DrillReport])
    number = newest.items[0].number + 1 if newest.items else 1
    report = api.request("PUT", f"/v1/drills/{number}", body=body, changes=True).decoded(DrillReport)
    failed = 0
    while wait and not api.is_dry_run and report.phase not in FINAL_PHASES:
        time.sleep(POLL_S)
        try:
            report, failed = _get(api, report.number), 0
        except (Unreachable, ApiRefused) as error:
            failed += 1
            if failed > MAX_FAILED_POLLS or (isinstance(error, ApiRefused) and error.status < 500):
                raise
    print_as(output, report, lambda: drill_view(report))
    if wait and not api.is_dry_run and report.phase is not DrillPhase.DONE:
        raise typer.Exit(EXIT_FAILED)


def _get(api: ApiClient, number: int) -> DrillReport:
    return api.request("GET", f"/v1/drills/{number}").decoded(DrillReport)


def _table(reports: Iterable[DrillReport]) -> Table:
    table = table_of("number", "began", "exercise", "phase", "RTO", "RPO", "why")
    for report in reports:
        row = (_exercise(report), report.phase.value.replace("_", " "), _seconds(report.rto_s), _rpo(report))
        table.add_row(str(report.number), _at(report.began_at), *row, report.why)
    return table


def _exercise(report: DrillReport) -> str:
    return f"evacuate {report.region}" if report.region is not None else "leader steps down"


def _rpo(report: DrillReport) -> str:
    if report.rpo is None:
        return "-"
    return f"{report.rpo} {'failed requests' if report.region is not None else 'lost changes'}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _at(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
