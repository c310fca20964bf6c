"""Commands that set, list and lift overrides: `drain`, `failover`, `weight`, `freeze`, and their counterparts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from secrets import token_hex
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from control_plane.cli.api_client import ApiClient, ApiRefused
from control_plane.cli.command_options import ChangeClient, ChangeOptions, ReadClient, ReasonOption, with_fleet_options
from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error, fail
from control_plane.cli.output import Output, OutputOption, print_as, print_view, table_of
from control_plane.overrides.override_resource import LiftedOverrides, OverrideState, OverrideStatus
from control_plane.page import Page
from penstock.overrides.overrides import WITHOUT_WEIGHT, OverrideKind

app = typer.Typer(no_args_is_help=True, help="List and lift overrides.")

RegionArgument = Annotated[str, typer.Argument(help="Name of the region.", show_default=False)]
ValueArgument = Annotated[
    float, typer.Argument(help="Share of the region's capacity, from 0 to below 1.", show_default=False)
]
DurationOption = Annotated[
    str | None,
    typer.Option("--for", help="Duration, such as 90s, 30m, 2h or 1d12h. Default: until lifted (`none`)."),
]
EmptyOption = Annotated[
    bool,
    typer.Option(
        "--empty", help="Refuse also the requests that no other permitted region can serve.", show_default=False
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Set the override although guard rails refuse it. Admins only.", show_default=False),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Limit to the traffic of this model.")]
OriginOption = Annotated[str | None, typer.Option("--origin", help="Limit to the requests that arrive in this region.")]

EVALUATION_TIMEOUT_S = 60.0
"""Time limit (s) of the requests of a dry run: the control plane evaluates the change on the fleet as it is."""

_UNIT_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")

_REGION = ("region", RegionArgument, Parameter.empty)
_VALUE = ("value", ValueArgument, Parameter.empty)
_EMPTY = ("empty", EmptyOption, False)
_FORCE = ("force", ForceOption, False)


def _set_command(name: str, kind: OverrideKind, help_text: str, *own: tuple[str, Any, object]) -> Callable[..., None]:
    """Make the command that sets an override of one kind.

    Args:
        name: name of the command.
        kind: kind of the override.
        help_text: help of the command.
        own: name, annotation and default of each parameter that is specific to this command.
    """

    def run(fleet: ChangeOptions, reason: str, duration: str | None, output: Output, **fields: Any) -> None:
        empty = fields.pop("empty", False)
        with exit_on_error(name), _connected(fleet) as api:
            wanted: dict[str, Any] = {"kind": kind.value}
            wanted |= {} if duration is None else {"expires_in_s": seconds_of(duration)}
            wanted |= {field: value for field, value in fields.items() if value is not None and field != "force"}
            wanted |= {"last_resort": False} if empty else {}
            forced = {"force": True} if fields.get("force") else {}
            status = set_override(api, name, wanted | forced | {"reason": reason})
            print_overrides(api, [status], output, overrides=[wanted])

    required = [parameter for parameter in own if parameter[2] is Parameter.empty]
    optional = [parameter for parameter in own if parameter[2] is not Parameter.empty]
    parameters: list[tuple[str, Any, object]] = [
        ("fleet", ChangeOptions, Parameter.empty),
        *required,
        ("reason", ReasonOption, Parameter.empty),
        ("duration", DurationOption, None),
        ("model", ModelOption, None),
        ("origin", OriginOption, None),
        *optional,
        ("output", OutputOption, Output.TABLE),
    ]
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(field, Parameter.KEYWORD_ONLY, annotation=type_, default=usual)
            for field, type_, usual in parameters
        ]
    )
    run.__doc__ = help_text
    return with_fleet_options(run)


drain = _set_command(
    "drain",
    OverrideKind.DRAIN,
    "Drain a region: its traffic moves to other regions at the rate of the policy.",
    _REGION,
    _EMPTY,
    _FORCE,
)
failover = _set_command(
    "failover",
    OverrideKind.FAIL_OVER,
    "Move all traffic away from a region at once, as if the region had failed. `undrain` lifts it.",
    _REGION,
    _EMPTY,
    _FORCE,
)
weight = _set_command(
    "weight",
    OverrideKind.WEIGHT,
    "Limit a region to a share of its capacity and of the traffic of each class. `overrides lift` lifts it.",
    _REGION,
    _VALUE,
    _FORCE,
)
freeze = _set_command("freeze", OverrideKind.FREEZE, "Keep the shares of the plan as they are, except in an emergency.")


@with_fleet_options
def undrain(
    fleet: ChangeOptions, region: RegionArgument, reason: ReasonOption, output: OutputOption = Output.TABLE
) -> None:
    """Lift every drain and failover of a region. Its traffic returns along the failback ramp."""
    with exit_on_error("undrain"), _connected(fleet) as api:
        path = f"/v1/regions/{quote(region, safe='')}/undrain"
        lifted: LiftedOverrides = api.request("POST", path, body={"reason": reason}, changes=True).decoded(
            LiftedOverrides
        )
        print_overrides(api, lifted.overrides, output, lift=[status.override.id for status in lifted.overrides])


@with_fleet_options
def unfreeze(api: ChangeClient, reason: ReasonOption, output: OutputOption = Output.TABLE) -> None:
    """Lift every freeze."""
    freezes = [
        status
        for status in list_overrides(api)
        if status.override.kind is OverrideKind.FREEZE and status.state is OverrideState.ACTIVE
    ]
    if not freezes:
        fail("unfreeze", "no freeze is in force", EXIT_FAILED)
    print_overrides(api, [lift_override(api, status.override.id, reason) for status in freezes], output)


@app.command("list")
@with_fleet_options
def list_(api: ReadClient, output: OutputOption = Output.TABLE) -> None:
    """List overrides, open maintenance windows, and regions on the failback ramp."""
    print_overrides(api, list_overrides(api), output)


@app.command()
@with_fleet_options
def lift(
    fleet: ChangeOptions,
    id: Annotated[str, typer.Argument(help="Identifier, as `overrides list` prints it.", show_default=False)],
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Lift one override. The traffic of its region returns along the failback ramp."""
    with exit_on_error("overrides lift"), _connected(fleet) as api:
        print_overrides(api, [lift_override(api, id, reason)], output, lift=[id])


def seconds_of(duration: str, option: str = "--for") -> float | str:
    """Return a duration such as 1d12h in seconds; `none` is returned as it is.

    Raises:
        UsageFault: the duration is malformed.
    """
    if duration == "none":
        return duration
    if not _DURATION.fullmatch(duration):
        raise UsageFault(f"{option} {duration}: give a duration such as 90s, 30m, 2h or 1d12h, or none")
    return sum(float(part[:-1]) * _UNIT_S[part[-1]] for part in re.findall(r"[\d.]+[dhms]", duration))


def set_override(api: ApiClient, command: str, body: dict[str, Any]) -> OverrideStatus:
    """Set an override under a new identifier. Exits with 1 if guard rails refuse it."""
    try:
        path = f"/v1/overrides/{token_hex(6)}"
        status = api.request("PUT", path, body=body, changes=True).decoded(OverrideStatus)
    except ApiRefused as refused:
        if not refused.problem.get("guard"):
            raise
        objection = str(refused).rpartition(";")[0]
        fail(command, f"{objection}; an admin can set it with --force", EXIT_FAILED, problem=refused.problem)
    return status


def lift_override(api: ApiClient, id: str, reason: str) -> OverrideStatus:
    """Lift an override, whatever its current version is."""
    path, headers = f"/v1/overrides/{quote(id, safe='')}", {"if-match": "*"}
    response = api.request("DELETE", path, params={"reason": reason}, headers=headers, changes=True)
    return response.decoded(OverrideStatus)


def list_overrides(api: ApiClient) -> list[OverrideStatus]:
    """Return all overrides."""
    return api.listed("/v1/overrides", Page[OverrideStatus])


def _connected(fleet: ChangeOptions) -> ApiClient:
    """Return a client that waits for an evaluation of the fleet if the command is a dry run."""
    return fleet.connect(timeout_s=EVALUATION_TIMEOUT_S) if fleet.dry_run else fleet.connect()


def print_overrides(api: ApiClient, statuses: Sequence[OverrideStatus], output: Output, **change: Any) -> None:
    """Print overrides; in a dry run as a table, also what the change would move (fields of `POST /v1/what-if`)."""
    print_as(output, statuses, lambda: _table(statuses))
    moves = any(status.override.kind is not OverrideKind.FREEZE for status in statuses)
    if api.is_dry_run and output is Output.TABLE and change and moves:
        # Imported late, because they import the planner.
        from control_plane.cli.views.simulation_view import live_view
        from control_plane.status.query_responses import WhatIfResponse

        found = api.request("POST", "/v1/what-if", body=change).decoded(WhatIfResponse)
        print_view(live_view(found))


def _table(statuses: Sequence[OverrideStatus]) -> Table:
    table = table_of("id", "kind", "region", "traffic", "state", "ends", "author", "reason")
    for status in statuses:
        override = status.override
        scope = [f"{name} {value}" for name, value in (("model", override.model), ("origin", override.origin)) if value]
        table.add_row(
            override.id,
            override.kind.value.replace("_", " "),
            "/".join(filter(None, (override.region, override.endpoint))) or "-",
            ", ".join(scope) or "all",
            status.state.value if override.kind in WITHOUT_WEIGHT else f"{status.state.value} {status.weight:.0%}",
            _format_end(status),
            override.author,
            override.reason,
        )
    return table


def _format_end(status: OverrideStatus) -> str:
    if status.state is not OverrideState.ACTIVE:
        return f"lifted by {status.override.lifted_by}" if status.override.lifted_by else "expired"
    if status.ends_in_s is None:
        return "when lifted"
    minutes, seconds = divmod(round(status.ends_in_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"in {hours} h {minutes} min" if hours else f"in {minutes} min {seconds} s"
