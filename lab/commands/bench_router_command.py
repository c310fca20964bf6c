"""`penstock-lab bench-router`: options, their errors, and the exit code."""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import structlog
import typer
import uvloop
from rich.console import Console

from adapters.servers.errors import ServerError
from lab.bench.bench_results import closing_line, goals_table, show, this_machine, write_results
from lab.bench.compiled import Build, build_of
from lab.bench.cores import Cores, TooFewCores, divide_cores, keep_to
from lab.bench.router.bench_router_report import Measurements, Results, results, tables
from lab.bench.router.cache_cost import measure_cache
from lab.bench.router.contestant import PEERS, Field, start_field
from lab.bench.router.decision import DecisionCost, decision_costs
from lab.bench.router.leak import check_leak
from lab.bench.router.rounds import Setup, open_streams, request_rounds, stream_rounds
from lab.bench.router.tenant_cost import measure_tenants
from lab.open_files import allow_many_open_files
from lab.refusal import refuse
from regional_agent.config.file_descriptors import shares_of

SIZES = (10, 100, 1000)
"""Numbers of endpoints to measure decisions with."""


class Part(StrEnum):
    """Parts that can be measured separately."""

    REQUESTS = "requests"
    STREAMS = "streams"
    OPEN_STREAMS = "open-streams"
    DECISION = "decision"
    LEAK = "leak"
    CACHE = "cache"
    TENANTS = "tenants"


def bench_router(
    only: Annotated[list[Part] | None, typer.Option(help="Part to measure; repeatable.")] = None,
    peer: Annotated[list[str] | None, typer.Option(help="Peer to compare with; repeatable.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Checkout with another build of Penstock (`make wheel`) to compare with.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each round measures every system.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of each measurement in seconds.")] = 3.0,
    warm_up: Annotated[float, typer.Option(min=0.0, help="Seconds of warm-up per measurement.")] = 1.0,
    connections: Annotated[int, typer.Option(min=1, max=1000, help="Requests in flight in the closed loop.")] = 64,
    rate: Annotated[float, typer.Option(min=1, help="Requests per second of the latency measurement.")] = 1000.0,
    fast_streams: Annotated[int, typer.Option(min=1, help="Concurrent fast streams.")] = 1_600,
    chunks: Annotated[float, typer.Option(min=1, help="Chunks per second of all fast streams together.")] = 40_000.0,
    slow_streams: Annotated[int, typer.Option(min=1, max=7_500, help="Concurrent slow streams.")] = 5_000,
    decisions: Annotated[int, typer.Option(min=100, help="Decisions per number of endpoints.")] = 20_000,
    leak_requests: Annotated[int, typer.Option(min=100, help="Requests of the memory check.")] = 200_000,
    continue_streams: Annotated[
        bool, typer.Option("--continue-streams", help="Continue streams of failed endpoints, which no peer does.")
    ] = False,
    out: Annotated[Path, typer.Option(help="File for the results.")] = Path("out/bench/router.json"),
) -> None:
    """Compare the cost of a request in Penstock and in other proxies, on one core each."""
    parts = frozenset(only or Part)
    unknown = set(peer or ()) - {contestant.name for contestant in PEERS}
    if unknown:
        names = ", ".join(contestant.name for contestant in PEERS)
        refuse("bench-router", f"--peer {', '.join(sorted(unknown))}: no such peer; there are {names}")
    setup = Setup(
        rounds=rounds,
        seconds=seconds,
        warm_up_s=warm_up,
        connections=connections,
        fixed_rate_per_s=rate,
        fast_streams=fast_streams,
        chunks_per_s=chunks,
        slow_streams=min(slow_streams, shares_of(allow_many_open_files()).traffic),
        slow_interval_s=1.0,
        decisions=decisions,
        leak_requests=leak_requests,
    )
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        other = None if baseline is None else build_of(baseline)
        wanted = None if peer is None else frozenset(peer)
        found = _measure(setup, parts, wanted, other, continue_streams=continue_streams)
        write_results(out, found)
    except (TooFewCores, ServerError, OSError) as error:
        refuse("bench-router", str(error))
    show(*tables(found), goals_table(found.goals))
    print(", ".join(f"{name} {system.version}" for name, system in found.systems.items()))
    for name, why in found.missing.items():
        print(f"missing: {name}: {why}")
    print(closing_line(found.machine, out))


def _measure(
    setup: Setup,
    parts: frozenset[Part],
    wanted: frozenset[str] | None,
    baseline: Build | None,
    *,
    continue_streams: bool,
) -> Results:
    machine = this_machine()
    cores = divide_cores()
    keep_to(cores.load)
    console = Console(stderr=True)
    compared = parts - {Part.DECISION, Part.LEAK, Part.CACHE, Part.TENANTS}
    peers = [contestant for contestant in PEERS if wanted is None or contestant.name in wanted] if compared else []
    with TemporaryDirectory(prefix="penstock-bench-") as name, console.status("starting") as status:
        directory = Path(name)
        status.update("decisions without proxying")
        decision = _decide(setup, directory / "decision", cores) if Part.DECISION in parts else []
        found = Measurements(decision=decision)
        field = Field((), (), {})
        if parts - {Part.DECISION, Part.CACHE, Part.TENANTS}:
            status.update("starting all systems")
            with start_field(directory, cores, peers, baseline=baseline, continue_streams=continue_streams) as field:
                found = Measurements(
                    request_rounds(field, setup, status.update) if Part.REQUESTS in parts else {},
                    stream_rounds(field, setup, status.update) if Part.STREAMS in parts else {},
                    open_streams(field, setup, status.update) if Part.OPEN_STREAMS in parts else {},
                    decision,
                    check_leak(field, setup.leak_requests, status.update) if Part.LEAK in parts else None,
                )
        if Part.CACHE in parts:
            cache = measure_cache(directory / "cache", cores.router, setup, status.update)
            found = msgspec.structs.replace(found, cache=cache)
        if Part.TENANTS in parts:
            tenants = measure_tenants(directory / "tenants", cores.router, setup, status.update)
            found = msgspec.structs.replace(found, tenants=tenants)
    return results(machine, setup, field, found)


def _decide(setup: Setup, directory: Path, cores: Cores) -> list[DecisionCost]:
    """Measure decisions in this process, on the core of the router."""
    os.sched_setaffinity(0, {cores.router})
    try:
        return uvloop.run(decision_costs(SIZES, setup.decisions, directory))
    finally:
        keep_to(cores.load)
