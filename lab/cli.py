"""`penstock-lab`: maps each command to the module that implements it."""

from __future__ import annotations

import typer

from adapters.standard_output import divert_native_output
from control_plane.cli.lazy_commands import lazy_group

COMMANDS = {
    "bench-live": "lab.commands.bench_live_command:bench_live",
    "bench-planner": "lab.bench.bench_planner:bench_planner",
    "bench-propagation": "lab.bench.bench_propagation:bench_propagation",
    "bench-router": "lab.commands.bench_router_command:bench_router",
    "demo": "lab.commands.demo_command:demo",
    "engines": "lab.commands.engine_command:engines",
    "forecast-errors": "lab.commands.forecast_errors_command:forecast_errors_command",
    "gameday": "lab.commands.gameday_command:gameday",
    "soak": "lab.commands.soak_command:soak",
    "replay": "lab.commands.replay_command:replay",
    "sim": "lab.commands.sim_command:sim",
    "simulate-batches": "lab.commands.simulate_batches_command:simulate_batches",
    "simulate-week": "lab.commands.simulate_week_command:simulate_week_command",
    "wan": "lab.commands.wan_command:wan",
}
"""Commands by name, imported on demand so that an engine process does not import the demo."""

app = typer.Typer(cls=lazy_group(COMMANDS), no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def lab() -> None:
    """Run and test a Penstock fleet on one machine, without a GPU."""


def main() -> None:
    """Entry point of the console script."""
    divert_native_output()
    app()
