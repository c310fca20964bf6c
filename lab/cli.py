"""`penstock-lab`: wires each command to the room that does its work."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "bench-live": "lab.bench.live.command",
    "bench-router": "lab.bench.router.command",
    "demo": "lab.demo.command",
    "engines": "lab.engine.command",
    "replay": "lab.replay.command",
    "simulate-choosing": "lab.simulate.command",
    "wan": "lab.wan.command",
}
"""Name and module; the module has a function of the name, with _ for -."""


class _OnDemand(TyperGroup):
    """Imports a command when it is asked for: a demo starts a dozen processes, and an engine needs none of the demo
    (Click documentation, "Lazily Loading Subcommands")."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name)(getattr(import_module(COMMANDS[cmd_name]), cmd_name.replace("-", "_")))
        return typer.main.get_command(alone)


app = typer.Typer(cls=_OnDemand, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def lab() -> None:
    """A planet on one machine: what it takes to run and test Penstock without a GPU."""


def main() -> None:
    """Entry point of the console script."""
    app()
