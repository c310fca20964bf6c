"""`penstock doctor`: what is wrong with a fleet or a host, and what to do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from control_plane.cli.api_client import ApiError
from control_plane.cli.command_options import FleetOptions, with_fleet_options
from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error
from control_plane.cli.output import Output, OutputOption, print_as, table_of

if TYPE_CHECKING:
    from control_plane.doctor.findings import Finding

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@with_fleet_options
def doctor(
    fleet: FleetOptions,
    agent_config: Annotated[Path | None, typer.Option(help="Settings of an agent on this host.")] = None,
    control_plane_config: Annotated[Path | None, typer.Option(help="Settings of a control plane on this host.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a fleet, through its control planes, and a host, by the settings of its daemons.

    Exit with 1 if there is a problem. Without a host's settings, a control plane must be selected.
    """
    with exit_on_error("doctor"):
        found = _of_host(agent_config, control_plane_config)
        try:
            found += _of_fleet(fleet)
        except UsageFault:
            # The host alone is checked where no control plane is selected.
            if not found:
                raise
    found = list(dict.fromkeys(found))
    print_as(output, found, lambda: _view(found))
    if any(finding.severity.value == "problem" for finding in found):
        raise typer.Exit(EXIT_FAILED)


def _of_host(agent_config: Path | None, control_plane_config: Path | None) -> list[Finding]:
    from adapters.logs import warnings_on_stderr
    from control_plane.doctor.host_checks import AGENT, CONTROL_PLANE, host_findings

    configs = ((CONTROL_PLANE, control_plane_config), (AGENT, agent_config))
    with warnings_on_stderr():
        return [each for daemon, file in configs if file is not None for each in host_findings(daemon, file)]


def _of_fleet(fleet: FleetOptions) -> list[Finding]:
    from control_plane.doctor.findings import problem
    from control_plane.doctor.fleet_checks import fleet_findings

    with fleet.connect() as api:
        try:
            status = api.status()
        except ApiError as error:
            if error.is_usage_error:
                raise
            remedy = "check that one runs: `penstock doctor --control-plane-config FILE` on its host"
            return [problem("control planes", str(error), remedy)]
        return fleet_findings(status, time.time())


def _view(found: list[Finding]) -> RenderableType:
    table = table_of("", "what", "found", "what to do", title="Findings")
    for finding in sorted(found, key=lambda finding: -list(_COLOURS).index(finding.severity.value)):
        severity = Text(finding.severity.value, _COLOURS[finding.severity.value])
        table.add_row(severity, finding.subject, finding.found, finding.remedy)
    return table
