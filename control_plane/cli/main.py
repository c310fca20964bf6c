"""Run control planes and operate a fleet.

Exit codes: 0 success; 1 no control plane answered, the request was refused, or a check failed; 2 invalid command line
or file.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from adapters.standard_output import divert_native_output
from control_plane.cli.lazy_commands import lazy_group

_COMMANDS = "control_plane.cli.commands"

COMMANDS = {
    "quickstart": f"{_COMMANDS}.quickstart_command:quickstart",
    "serve": f"{_COMMANDS}.serve_command:serve",
    "certs": f"{_COMMANDS}.certs_commands:app",
    "invite": f"{_COMMANDS}.quickstart_command:invite",
    "join": f"{_COMMANDS}.quickstart_command:join",
    "doctor": f"{_COMMANDS}.doctor_command:doctor",
    "status": f"{_COMMANDS}.viewing.status_command:status",
    "top": f"{_COMMANDS}.viewing.top_command:top",
    "endpoints": f"{_COMMANDS}.viewing.endpoints_commands:endpoints",
    "endpoint": f"{_COMMANDS}.operating.endpoint_commands:app",
    "capacity": f"{_COMMANDS}.viewing.capacity_command:capacity",
    "jobs": f"{_COMMANDS}.viewing.jobs_command:jobs",
    "profile": f"{_COMMANDS}.profile_command:profile",
    "explain": f"{_COMMANDS}.explain_command:explain",
    "steer": f"{_COMMANDS}.entries.steer_command:steer",
    "dns": f"{_COMMANDS}.entries.dns_commands:app",
    "anycast": f"{_COMMANDS}.entries.anycast_command:anycast",
    "what-if": f"{_COMMANDS}.what_if_command:what_if",
    "drain": f"{_COMMANDS}.operating.overrides_commands:drain",
    "undrain": f"{_COMMANDS}.operating.overrides_commands:undrain",
    "failover": f"{_COMMANDS}.operating.overrides_commands:failover",
    "weight": f"{_COMMANDS}.operating.overrides_commands:weight",
    "freeze": f"{_COMMANDS}.operating.overrides_commands:freeze",
    "unfreeze": f"{_COMMANDS}.operating.overrides_commands:unfreeze",
    "overrides": f"{_COMMANDS}.operating.overrides_commands:app",
    "drill": f"{_COMMANDS}.operating.drill_commands:app",
    "plan": f"{_COMMANDS}.plan_commands:app",
    "policy": f"{_COMMANDS}.policy_commands:app",
    "rollout": f"{_COMMANDS}.operating.rollout_commands:app",
    "cache": f"{_COMMANDS}.operating.cache_commands:app",
    "tenant": f"{_COMMANDS}.operating.tenant_commands:app",
    "usage": f"{_COMMANDS}.usage_commands:app",
    "audit": f"{_COMMANDS}.audit_commands:app",
    "residency": f"{_COMMANDS}.residency_commands:app",
    "backup": f"{_COMMANDS}.backup_commands:backup",
    "restore": f"{_COMMANDS}.backup_commands:restore",
    "context": f"{_COMMANDS}.context_commands:app",
}
"""Module and function of each command. Only the module of the invoked command is imported."""

app = typer.Typer(cls=lazy_group(COMMANDS), no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


def _print_version(wanted: bool) -> None:
    if wanted:
        # Imported late, because commands start faster without this import.
        from adapters.configuration.config_check import version_line

        print(version_line("penstock"))
        raise typer.Exit


@app.callback()
def _penstock(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The `penstock` command."""
    divert_native_output()
    try:
        try:
            app(prog_name="penstock")
        finally:
            sys.stdout.flush()
    except OSError as error:
        # stdout is redirected, because the interpreter would flush it again at exit, and exit with another code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # The system's text has neither the remedy nor, of standard output, the file.
        named = f"{error.filename}: {error.strerror}; check its path, owner and mode" if error.filename else str(error)
        print(f"penstock: {named}", file=sys.stderr)
        sys.exit(1)
