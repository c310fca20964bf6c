"""The command `penstock-lab simulate-choosing`, which compares endpoint selection strategies on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from lab.simulate.choosing import AGENTS, MIXED, REQUESTS_PER_S, WARM_UP_S, Outcome, Strategy, compare


def simulate_choosing(
    agents: Annotated[int, typer.Option(min=1, max=64, help="Agents in front of the engines.")] = AGENTS,
    rate: Annotated[
        list[float] | None, typer.Option(min=0.1, max=1000, help="Requests per second; may be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=WARM_UP_S + 10, max=3600, help="Duration (s) of arrivals.")] = 120.0,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 1,
    out: Annotated[Path, typer.Option(help="Output file (JSON).")] = Path("out/bench/choosing.json"),
) -> None:
    """Compare endpoint selection strategies on the same requests."""
    console = Console()
    found = []
    for each in rate or REQUESTS_PER_S:
        outcomes = []
        for strategy in Strategy:
            outcomes += compare([strategy], agents=agents, requests_per_s=each, duration_s=seconds, seed=seed)
        console.print(_table(outcomes, agents, each))
        found.append({"requests_per_s": each, "outcomes": outcomes})
    settings = {"agents": agents, "seconds": seconds, "warm_up_s": WARM_UP_S, "seed": seed, "engines": MIXED}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode({"settings": settings, "rates": found}), indent=1))
    console.print(f"results: {out}")


def _table(outcomes: list[Outcome], agents: int, rate: float) -> Table:
    engines = ", ".join(f"{kind.count} {kind.accelerator} of {kind.max_num_seqs} slots" for kind in MIXED)
    table = Table(title=f"{rate:g} requests/s through {agents} agents to {engines}; simulated seconds")
    table.add_column("strategy")
    for column in ("first p50", "first p99", "end p50", "end p99", "use deviation"):
        table.add_column(column, justify="right")
    for outcome in outcomes:
        numbers = (outcome.first_p50_s, outcome.first_p99_s, outcome.end_p50_s, outcome.end_p99_s)
        table.add_row(outcome.strategy.value, *(f"{number:.2f}" for number in numbers), f"{outcome.use_deviation:.2f}")
    return table
