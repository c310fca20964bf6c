"""Options and inputs that `penstock what-if` and `penstock policy simulate` share: demand, capacity, lost regions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from control_plane.cli.error_output import UsageFault

if TYPE_CHECKING:
    from penstock.what_if.demand_outcomes import Capacity, DemandGroup

DemandOption = Annotated[
    Path | None, typer.Option("--demand", help="File of demand by kind of request: CSV or JSON lines.")
]
TraceOption = Annotated[
    list[Path] | None, typer.Option("--trace", help="Agent's access log, as demand; may be repeated.")
]
FleetFileOption = Annotated[
    Path | None, typer.Option("--fleet", help="File of the regions' capacity: CSV or JSON lines.")
]
LostOption = Annotated[
    list[str] | None, typer.Option("--lost", help="Region that fails, on the new side; may be repeated.")
]
AlreadyLostOption = Annotated[
    list[str] | None, typer.Option("--already-lost", help="Region that has failed on both sides; may be repeated.")
]


GrownDemandOption = Annotated[
    list[str] | None,
    typer.Option(
        "--demand",
        help="File of demand by kind of request (CSV or JSON lines), or a growth of the demand on the new side:"
        " xFACTOR[,model=MODEL][,origin=REGION], such as x1.5; may be repeated.",
    ),
]
_GROWTH = re.compile(r"x(?P<factor>[0-9]{1,6}(\.[0-9]{1,6})?)(?P<match>(,(model|origin)=[^,]{1,512}){0,2})")


def divided_demand(given: list[str] | None) -> tuple[Path | None, list[dict[str, Any]]]:
    """Divide the values of `--demand` into a file and rows of growth.

    Raises:
        UsageFault: there are several files, or a growth is invalid.
    """
    files: list[str] = []
    growth: list[dict[str, Any]] = []
    for text in given or ():
        found = _GROWTH.fullmatch(text)
        if found is not None:
            matched = dict(part.split("=", 1) for part in found["match"].split(",") if part)
            growth.append({"factor": float(found["factor"]), **matched})
        elif re.match(r"x[0-9]", text) and not Path(text).exists():
            raise UsageFault(f"--demand {text}: write xFACTOR[,model=MODEL][,origin=REGION], such as x1.5,model=llama")
        else:
            files.append(text)
    if len(files) > 1:
        raise UsageFault("--demand: give one file")
    return (Path(files[0]) if files else None), growth


def given_demand(demand: Path | None, trace: list[Path] | None) -> list[DemandGroup] | None:
    """Return the demand of the files; None without a file.

    Raises:
        UsageFault: both are given, or a file is invalid.
    """
    from control_plane.cli.demand_file import BadDemand, read_access_logs, read_demand

    if demand is not None and trace:
        raise UsageFault("--demand and --trace cannot be used together")
    try:
        if demand is not None:
            return read_demand(demand)
        return read_access_logs(trace) if trace else None
    except BadDemand as error:
        raise UsageFault(str(error)) from None


def given_fleet(file: Path | None) -> list[Capacity] | None:
    """Return the capacity in the file; None without a file.

    Raises:
        UsageFault: the file is invalid.
    """
    from control_plane.cli.demand_file import BadDemand, read_fleet

    try:
        return read_fleet(file) if file is not None else None
    except BadDemand as error:
        raise UsageFault(str(error)) from None
