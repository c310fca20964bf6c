"""`penstock-lab`: wires each command to the room that does its work."""

from __future__ import annotations

import typer

from lab.demo.command import demo
from lab.engine.command import engines
from lab.replay.command import replay
from lab.wan.command import wan

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def lab() -> None:
    """A planet on one machine: what it takes to run and test Penstock without a GPU."""


app.command()(demo)
app.command()(engines)
app.command()(replay)
app.command()(wan)


def main() -> None:
    """Entry point of the console script."""
    app()
