"""What operators want meanwhile: `penstock drain`, `undrain`, `failover`, `weight`, `freeze`, and how it is lifted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from control_plane.cli.api_client import ApiClient, ApiRefused
from control_plane.cli.connection_options import Fleet, for_fleet
from control_plane.cli.error_output import FAILED, CommandFault, fail, telling
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.reason_option import ReasonOption
from control_plane.cli.table import table_of
from control_plane.overrides.override_resource import Lifted, OverridePage, OverridePhase, OverrideStatus
from penstock.overrides.overrides import OverrideKind

app = typer.Typer(no_args_is_help=True, help="Show and lift what operators have overridden.")

RegionArgument = Annotated[str, typer.Argument(help="The region.", show_default=False)]
ForOption = Annotated[str, typer.Option("--for", help="How long, such as 90s, 30m, 2h or 1d12h; none: until lifted.")]
EmptyOption = Annotated[
    bool, typer.Option("--empty", help="Refuse even what no other permitted region can serve.", show_default=False)
]
IKnowOption = Annotated[
    bool, typer.Option("--i-know", help="Do it although guard rails speak against it.", show_default=False)
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Only this model's traffic.")]
OriginOption = Annotated[str | None, typer.Option("--origin", help="Only what lands on this region.")]

COMMAND_OF = {
    OverrideKind.DRAIN: "drain",
    OverrideKind.FAIL_OVER: "failover",
    OverrideKind.WEIGHT: "weight",
    OverrideKind.FREEZE: "freeze",
}

_UNIT_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")


@for_fleet
def drain(
    fleet: Fleet,
    region: RegionArgument,
    reason: ReasonOption,
    lasting: ForOption = "none",
    model: ModelOption = None,
    origin: OriginOption = None,
    empty: EmptyOption = False,
    i_know: IKnowOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Empty a region: it takes no new traffic, and its shares leave step by step."""
    body = {"region": region, "model": model, "origin": origin, "last_resort": not empty, "override_guard": i_know}
    with telling("drain"), fleet.connect() as api:
        _begin(api, OverrideKind.DRAIN, reason, lasting, body, output)


@for_fleet
def failover(
    fleet: Fleet,
    region: RegionArgument,
    reason: ReasonOption,
    lasting: ForOption = "none",
    model: ModelOption = None,
    origin: OriginOption = None,
    empty: EmptyOption = False,
    i_know: IKnowOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take all traffic from a region at once, as if it were lost; `undrain` ends it."""
    body = {"region": region, "model": model, "origin": origin, "last_resort": not empty, "override_guard": i_know}
    with telling("failover"), fleet.connect() as api:
        _begin(api, OverrideKind.FAIL_OVER, reason, lasting, body, output)


@for_fleet
def weight(
    fleet: Fleet,
    region: RegionArgument,
    value: Annotated[float, typer.Argument(help="Its part, from 0 to below 1.", show_default=False)],
    reason: ReasonOption,
    lasting: ForOption = "none",
    model: ModelOption = None,
    origin: OriginOption = None,
    i_know: IKnowOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Hold a region to a part of its capacity and of any class's traffic; `overrides lift` ends it."""
    body = {"region": region, "value": value, "model": model, "origin": origin, "override_guard": i_know}
    with telling("weight"), fleet.connect() as api:
        _begin(api, OverrideKind.WEIGHT, reason, lasting, body, output)


@for_fleet
def freeze(
    fleet: Fleet,
    reason: ReasonOption,
    lasting: ForOption = "none",
    model: ModelOption = None,
    origin: OriginOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Keep shares as they are, but for emergencies."""
    with telling("freeze"), fleet.connect() as api:
        _begin(api, OverrideKind.FREEZE, reason, lasting, {"model": model, "origin": origin}, output)


@for_fleet
def undrain(
    fleet: Fleet,
    region: RegionArgument,
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a region return, by the failback ramp: lift every drain and failover of it."""
    with telling("undrain"), fleet.connect() as api:
        path = f"/v1/regions/{quote(region, safe='')}/undrain"
        lifted: Lifted = api.ask("POST", path, body={"reason": reason}, changes=True).decoded(Lifted)
        _print(lifted.overrides, output)


@for_fleet
def unfreeze(
    fleet: Fleet,
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let plans move again: lift every freeze."""
    with telling("unfreeze"), fleet.connect() as api:
        frozen = [
            one for one in _listed(api) if one.override.kind is OverrideKind.FREEZE and one.phase is OverridePhase.HOLDS
        ]
        if not frozen:
            fail("unfreeze", "nothing is frozen", FAILED)
        _print([_lift(api, one.override.id, reason) for one in frozen], output)


@app.command("list")
@for_fleet
def list_(
    fleet: Fleet,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what is overridden, maintenance windows that are open, and regions on their way back."""
    with telling("overrides list"), fleet.connect() as api:
        _print(_listed(api), output)


@app.command()
@for_fleet
def lift(
    fleet: Fleet,
    id: Annotated[str, typer.Argument(help="As `overrides list` shows it.", show_default=False)],
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """End one override; its region returns by the failback ramp."""
    with telling("overrides lift"), fleet.connect() as api:
        _print([_lift(api, id, reason)], output)


def seconds_of(duration: str) -> float | str:
    """A duration as people write it, in seconds; `none` stays.

    Raises:
        CommandFault: it is none.
    """
    if duration == "none":
        return duration
    if not _DURATION.fullmatch(duration):
        raise CommandFault(f"--for {duration}: give a duration such as 90s, 30m, 2h or 1d12h, or none")
    return sum(float(part[:-1]) * _UNIT_S[part[-1]] for part in re.findall(r"[\d.]+[dhms]", duration))


def _begin(
    api: ApiClient, kind: OverrideKind, reason: str, lasting: str, fields: dict[str, Any], output: Output
) -> None:
    body = {"kind": kind.value, "reason": reason, "expires_in_s": seconds_of(lasting)}
    body |= {name: value for name, value in fields.items() if value is not None}
    try:
        one: OverrideStatus = api.ask("POST", "/v1/overrides", body=body, changes=True).decoded(OverrideStatus)
    except ApiRefused as refused:
        if not refused.problem.get("guard"):
            raise
        told = str(refused).rpartition(";")[0]
        fail(COMMAND_OF[kind], f"{told}; an admin who means it gives --i-know", FAILED, problem=refused.problem)
    _print([one], output)


def _lift(api: ApiClient, id: str, reason: str) -> OverrideStatus:
    path, headers = f"/v1/overrides/{quote(id, safe='')}", {"if-match": "*"}
    answer = api.ask("DELETE", path, params={"reason": reason}, headers=headers, changes=True)
    lifted: OverrideStatus = answer.decoded(OverrideStatus)
    return lifted


def _listed(api: ApiClient) -> list[OverrideStatus]:
    found: list[OverrideStatus] = []
    cursor: str | None = None
    while True:
        page: OverridePage = api.ask("GET", "/v1/overrides", params={"cursor": cursor}).decoded(OverridePage)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


def _print(some: Sequence[OverrideStatus], output: Output) -> None:
    print_as(output, some, lambda: _table(some))


def _table(some: Sequence[OverrideStatus]) -> Table:
    table = table_of("id", "kind", "region", "traffic", "state", "ends", "author", "reason")
    for one in some:
        override = one.override
        about = [f"{name} {value}" for name, value in (("model", override.model), ("origin", override.origin)) if value]
        table.add_row(
            override.id,
            override.kind.value.replace("_", " "),
            override.region or "-",
            ", ".join(about) or "all",
            f"{one.phase.value} {one.weight:.0%}" if override.region else one.phase.value,
            _ends(one),
            override.author,
            override.reason,
        )
    return table


def _ends(one: OverrideStatus) -> str:
    if one.phase is not OverridePhase.HOLDS:
        return f"lifted by {one.override.lifted_by}" if one.override.lifted_by else "has ended"
    if one.ends_in_s is None:
        return "when lifted"
    minutes, seconds = divmod(round(one.ends_in_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"in {hours} h {minutes} min" if hours else f"in {minutes} min {seconds} s"
