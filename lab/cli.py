"""`penstock-lab`: maps each command to the module that implements it."""

from __future__ import annotations

import typer

from adapters.standard_output import divert_native_output
from control_plane.cli.lazy_commands import lazy_group

COMMANDS = {
    "bench-live": "lab.bench.live.bench_live_command:bench_live",
    "bench-planner": "lab.bench.bench_planner:bench_planner",
    "bench-propagation": "lab.bench.bench_propagation:bench_propagation",
    "bench-router": "lab.bench.router.bench_router_command:bench_router",
    "calibrate": "lab.simulate.commands.calibrate_command:calibrate",
    "demo": "lab.demo.demo_command:demo",
    "engines": "lab.engine.engine_command:engines",
    "gameday": "lab.gameday.gameday_command:gameday",
    "soak": "lab.gameday.soak_command:soak",
    "replay": "lab.replay.replay_command:replay",
    "sim": "lab.simulate.commands.sim_command:sim",
    "simulate-scaling": "lab.simulate.commands.simulate_scaling_command:simulate_scaling",
    "simulate-world": "lab.simulate.commands.simulate_world_command:simulate_world",
    "wan": "lab.wan.wan_command:wan",
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
