"""The command `penstock-lab simulate-live`, which measures the latency of `bench-live` on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from lab.bench.live.fleet import INSTANCES
from lab.refusal import refuse
from lab.simulate.live import COMPARED, LIVE, Tail, conversation_rounds, measure_tails, rounds_of
from lab.traces.trace import TraceError
from penstock.policy.policy import Queueing, QueueOrder


def simulate_live(
    trace: Annotated[Path | None, typer.Option(help="Azure CSV or Mooncake JSONL; default: generated.")] = None,
    conversations: Annotated[
        bool, typer.Option(help="Use conversations with high prefix reuse instead of a trace.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Number of generated workloads.")] = 16,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="Duration (s) of arrivals in each round.")] = 56.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Time (s) at the start of a round that is not counted.")] = 8.0,
    rate: Annotated[float, typer.Option(min=0.1, max=1000, help="Requests per second.")] = 15.0,
    order: Annotated[QueueOrder, typer.Option(help="Queue order of Penstock's agents.")] = QueueOrder.SHORTEST,
    max_overtaken: Annotated[
        float, typer.Option(min=0, max=3600, help="Later arrivals (s) do not overtake; order shortest.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of the first round.")] = 2026,
    out: Annotated[Path, typer.Option(help="Output file (JSON).")] = Path("out/bench/live-simulated.json"),
) -> None:
    """Compare least request with Penstock on simulated engines with the workloads of the live benchmark."""
    if warm_up >= seconds:
        refuse("simulate-live", f"--warm-up {warm_up:g}: must be less than --seconds {seconds:g}")
    if conversations and trace is not None:
        refuse("simulate-live", "--trace and --conversations are mutually exclusive")
    try:
        if conversations:
            drawn = conversation_rounds(rate, seconds, rounds, seed)
        else:
            drawn = rounds_of(trace, rate, seconds, rounds, seed)
    except (TraceError, OSError) as error:
        refuse("simulate-live", str(error))
    console = Console()
    queueing = Queueing(order, max_overtaken)
    tails = [
        measure_tails(contender, agents, drawn, warm_up, queueing)
        for agents in (1, INSTANCES)
        for contender in COMPARED
    ]
    console.print(_table(tails, rate))
    settings = {
        "trace": trace.name if trace else "conversations" if conversations else "generated",
        "rounds": rounds,
        "seconds": seconds,
        "warm_up_s": warm_up,
        "rate_per_s": rate,
        "seed": seed,
        "queueing": queueing,
        "engines": LIVE,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode({"settings": settings, "tails": tails}), indent=1))
    console.print(f"results: {out}")


def _table(tails: list[Tail], rate: float) -> Table:
    table = Table(title=f"{rate:g} requests/s, {tails[0].requests} requests each; simulated seconds")
    table.add_column("agents", justify="right")
    table.add_column("strategy")
    for column in ("ttft p50", "ttft p99", "e2e p50", "e2e p99", "e2e p99.9"):
        table.add_column(column, justify="right")
    for tail in tails:
        numbers = (tail.ttft_p50_s, tail.ttft_p99_s, tail.e2e_p50_s, tail.e2e_p99_s, tail.e2e_p999_s)
        table.add_row(str(tail.agents), tail.contender, *(f"{number:.2f}" for number in numbers))
    return table
