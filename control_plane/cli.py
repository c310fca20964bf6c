"""`penstock`: run control planes and operate a fleet.

Exit codes: 0 done; 1 nobody answers, or what was asked for is refused or not so; 2 the command has to be corrected.
"""

from __future__ import annotations

import os
import sys

import typer

from control_plane.commands.on_demand import on_demand

_ROOM = "control_plane.commands"

COMMANDS = {
    "serve": f"{_ROOM}.serve:serve",
    "status": f"{_ROOM}.status:status",
    "endpoints": f"{_ROOM}.endpoints:endpoints",
    "explain": f"{_ROOM}.explain:explain",
    "steer": f"{_ROOM}.steer:steer",
    "what-if": f"{_ROOM}.what_if:what_if",
    "drain": f"{_ROOM}.overrides:drain",
    "undrain": f"{_ROOM}.overrides:undrain",
    "failover": f"{_ROOM}.overrides:failover",
    "weight": f"{_ROOM}.overrides:weight",
    "freeze": f"{_ROOM}.overrides:freeze",
    "unfreeze": f"{_ROOM}.overrides:unfreeze",
    "overrides": f"{_ROOM}.overrides:app",
    "plan": f"{_ROOM}.plan:app",
    "policy": f"{_ROOM}.policy:app",
    "rollout": f"{_ROOM}.rollout:app",
    "audit": f"{_ROOM}.audit:app",
    "context": f"{_ROOM}.context:app",
}
"""Where each command is; operators under stress wait for none but their own to load."""

app = typer.Typer(cls=on_demand(COMMANDS), no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


@app.callback()
def _penstock() -> None:
    pass


def main() -> None:
    """The `penstock` command."""
    try:
        try:
            app(prog_name="penstock")
        finally:
            sys.stdout.flush()
    except OSError as error:
        # What could not be written would be tried again at the interpreter's end, and end it with a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(1)
