"""The command `penstock-lab simulate-world`, which measures the throughput of the simulator on one core."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lab.bench.bench_results import write_results
from lab.simulate.many_regions import Faults, World, WorldConfig


def simulate_world(
    regions: Annotated[int, typer.Option(min=1, max=10_000, help="Regions.")] = 1000,
    endpoints: Annotated[int, typer.Option(min=1, max=1000, help="Endpoints of each region.")] = 100,
    agents: Annotated[int, typer.Option(min=1, max=16, help="Agents of each region.")] = 2,
    jurisdiction: Annotated[int, typer.Option(min=1, max=1000, help="Regions that may serve each other.")] = 20,
    rate: Annotated[float, typer.Option(min=1, max=1_000_000, help="Requests per second of all regions.")] = 2000.0,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Duration (s) of arrivals.")] = 20.0,
    report_age: Annotated[float, typer.Option(min=0, max=600, help="Age (s) of the planner's reports.")] = 5.0,
    lost: Annotated[int, typer.Option(min=0, help="Regions that fail in the middle of the run.")] = 0,
    slow: Annotated[int, typer.Option(min=0, help="Engines per region that slow down tenfold in mid-run.")] = 0,
    cold: Annotated[int, typer.Option(min=0, help="Engines per region that load until mid-run.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 1,
    out: Annotated[Path, typer.Option(help="Output file (JSON).")] = Path("out/sim/world.json"),
) -> None:
    """Run many regions with the product's decision code on one core; print events per second and memory."""
    config = WorldConfig(
        regions, endpoints, rate, seconds, agents, jurisdiction, report_age, faults=Faults(lost, slow, cold), seed=seed
    )
    result = World(config).run()
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console = Console()
    table = Table(
        title=f"{regions} regions x {endpoints} endpoints, {seconds:g} s of the virtual clock", show_header=False
    )
    rows = {
        "events": f"{result.events:,} ({result.events / result.cpu_s:,.0f}/s of processor time)",
        "requests": f"{result.requests:,} ({result.requests / result.cpu_s:,.0f}/s)",
        "processor time": f"{result.cpu_s:.1f} s, {result.planner_cpu_s:.1f} s of it for {result.plans} plans",
        "peak memory": f"{memory_mb:,.0f} MB",
        "first token": f"p50 {result.ttft_p50_s:.3f} s, p99 {result.ttft_p99_s:.3f} s",
        "end to end": f"p50 {result.e2e_p50_s:.2f} s, p99 {result.e2e_p99_s:.2f} s",
        "served in another region": f"{result.away:,}",
        "broken, rerouted, unanswered": f"{result.broken:,}, {result.rerouted:,}, {result.unanswered:,}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    report = {"config": config, "result": result, "peak_memory_mb": round(memory_mb)}
    write_results(out, report)
    console.print(f"results: {out}")
