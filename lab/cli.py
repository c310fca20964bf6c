"""`penstock-lab`: wires each command to the room that does its work."""

from __future__ import annotations

import sys

import typer

from control_plane.commands.on_demand import on_demand

COMMANDS = {
    "bench-live": "lab.bench.live.command:bench_live",
    "bench-planner": "lab.bench.bench_planner:bench_planner",
    "bench-propagation": "lab.bench.bench_propagation:bench_propagation",
    "bench-router": "lab.bench.router.command:bench_router",
    "demo": "lab.demo.command:demo",
    "engines": "lab.engine.command:engines",
    "replay": "lab.replay.command:replay",
    "simulate-choosing": "lab.simulate.command:simulate_choosing",
    "simulate-live": "lab.simulate.live_command:simulate_live",
    "wan": "lab.wan.command:wan",
}
"""Where each command is: a demo starts a dozen processes, and an engine needs none of the demo."""

OF_THE_EXTRA = "mmdb_writer"
"""What a Penstock without the extra `lab` cannot import."""

app = typer.Typer(cls=on_demand(COMMANDS), no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def lab() -> None:
    """A planet on one machine: what it takes to run and test Penstock without a GPU."""


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except ModuleNotFoundError as missing:
        if missing.name != OF_THE_EXTRA:
            raise
        print(
            f"penstock-lab: {OF_THE_EXTRA} is not installed; install Penstock with its extra: "
            "pip install 'penstock[lab]'",
            file=sys.stderr,
        )
        sys.exit(2)
