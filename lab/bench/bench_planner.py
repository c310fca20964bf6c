"""`make bench-planner`: time and memory of the flow planner, cold and warm, and cost of its plans and the waterfall's.

A size AxBxC is A origins, B of them with GPUs, and C traffic classes (model and residency class); every origin has
demand in every class. The planner computes A x C share tables, each over up to B regions. Models of one capacity group
share their slots in every region and are planned together. Rates and service times vary by up to JITTER in every tick.

Times are of the whole tick, from reports to published slices: wall-clock time, and CPU time of the planning thread,
which is comparable if other processes use the machine. Each size runs in a separate process.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from rich.console import Console

from adapters.servers.process import find_script
from lab.bench.bench_results import Columns, columns_table, write_results
from lab.bench.planets import Planet, Size, planet
from penstock.fleet.capacity import supply
from penstock.fleet.snapshot import Snapshot, demand
from penstock.planning.linear_program.distances import Distances
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.plan_cost import Cost, evaluate
from penstock.planning.plan import RegionPlan
from penstock.planning.planner import PlanResult
from penstock.planning.tick_input import TickInput, planned_for
from penstock.planning.waterfall import waterfall_shares

SIZES = (
    (Size(10, 10, 5, 2), 40),
    (Size(30, 20, 10, 3), 40),
    (Size(100, 30, 20, 5), 40),
    (Size(100, 30, 20, 5, group_models=2), 40),
    (Size(100, 30, 20, 5, group_models=5), 40),
    (Size(30, 30, 2000, 100), 5),
    (Size(100, 100, 600, 20), 5),
)
"""Sizes with the number of warm ticks to measure."""

JITTER = 0.02
"""Share by which every rate and service time varies around its mean, in each tick."""

SEED = 1
TIME_LIMIT_S = 600.0
"""Time limit (s) of the solver, long enough to find the optimum of every size."""

TICK_S = 0.5
TARGET = Size(100, 30, 20, 5)
TARGET_WARM_MS = 150.0
"""Maximum CPU time (ms) of a warm tick of the target size."""

OUT = Path("out/bench/planner.json")


class Clock:
    """Wall and CPU time of a block, in milliseconds."""

    def __enter__(self) -> Clock:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_ms = (time.perf_counter() - self._wall) * 1000
        self.cpu_ms = (time.thread_time() - self._cpu) * 1000


def measure(size: Size, ticks: int) -> dict[str, Any]:
    """Measure one size in this process."""
    world, rng = planet(size, SEED), Random(SEED)
    before_mb = _resident_mb()
    planner = FlowPlanner(TIME_LIMIT_S)
    snapshot = world.snapshot(rng, JITTER)
    with Clock() as cold:
        planned = _tick(planner, world, snapshot, {})
    waterfall_ms, waterfall_cost = _waterfall(planned, world, snapshot)
    compared = planned.cost
    warm = []
    for number in range(1, ticks + 1):
        snapshot = world.snapshot(rng, JITTER)
        with Clock() as clock:
            planned = _tick(planner, world, snapshot, planned.plans, number * TICK_S)
        warm.append(clock)
    busiest = max((pool for pool in world.slots), key=lambda pool: world.slots[pool])[0]
    with Clock() as loss:
        lost = _tick(planner, world, world.snapshot(rng, JITTER, failed=busiest), planned.plans, (ticks + 1) * TICK_S)
    assert not planned.fallbacks
    assert not lost.fallbacks
    return {
        "size": size.name,
        "models": size.models,
        "tables": sum(len(answer.problem.shape.keys) for answer in planned.answers),
        "cold_ms": cold.wall_ms,
        "cold_cpu_ms": cold.cpu_ms,
        "warm_ms": statistics.median(timing.wall_ms for timing in warm),
        "warm_worst_ms": max(timing.wall_ms for timing in warm),
        "warm_cpu_ms": statistics.median(timing.cpu_ms for timing in warm),
        "loss_of_a_region_cpu_ms": loss.cpu_ms,
        "memory_mb": _resident_mb() - before_mb,
        "waterfall_cpu_ms": waterfall_ms,
        "cost": _parts(compared),
        "waterfall_cost": _parts(waterfall_cost),
    }


def _tick(
    planner: FlowPlanner, world: Planet, snapshot: Snapshot, plans: dict[str, RegionPlan], now: float = 0.0
) -> PlanResult:
    return planner.plan(
        TickInput(
            policy=world.policy,
            snapshot=snapshot,
            previous=plans,
            now=now,
            epoch=1,
            generation=1,
            elapsed_s=TICK_S,
        )
    )


def _waterfall(planned: PlanResult, world: Planet, snapshot: Snapshot) -> tuple[float, Cost]:
    """CPU time (ms) of the waterfall for the same snapshot, and the cost of its shares by the planner's objective."""
    able = supply(world.policy, snapshot, 0.0)
    demands = planned_for(world.policy, demand(snapshot, 0.0))
    distances = Distances(world.policy)
    tables = waterfall_shares(world.policy, demands, able, distances.nearest_first)
    with Clock() as clock:
        waterfall_shares(world.policy, demands, able, distances.nearest_first)
    costs = [evaluate(Flows.of_shares(answer.problem, tables)) for answer in planned.answers]
    return clock.cpu_ms, sum(costs, Cost())


def _parts(cost: Cost) -> dict[str, float]:
    return {name: float(getattr(cost, name)) for name in (*cost.__struct_fields__, "total")}


def _resident_mb() -> float:
    """The peak resident memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _ordinary(parts: dict[str, float]) -> float:
    """Cost of round trips, waiting, egress and GPU time: the whole cost if capacity suffices."""
    return sum(parts[name] for name in ("round_trips", "waiting", "egress", "gpu"))


def _scarce(parts: dict[str, float]) -> float:
    return sum(parts[name] for name in ("reserve", "past_target", "no_room"))


Row = dict[str, Any]
COLUMNS: Columns[Row] = (
    ("origins x servers x classes", lambda row: row["size"]),
    ("share tables", lambda row: f"{row['tables']:,}"),
    ("cold", lambda row: f"{row['cold_ms']:,.0f} ms"),
    ("warm", lambda row: f"{row['warm_ms']:,.1f} ms"),
    ("warm CPU", lambda row: f"{row['warm_cpu_ms']:,.1f} ms"),
    ("loss of a region", lambda row: f"{row['loss_of_a_region_cpu_ms']:,.1f} ms"),
    ("memory", lambda row: f"{row['memory_mb']:,.0f} MB"),
    ("waterfall", lambda row: f"{row['waterfall_cpu_ms']:,.1f} ms"),
    ("cost: flow / waterfall", lambda row: _compared(row, _ordinary, 1)),
    ("scarcity: flow / waterfall", lambda row: _compared(row, _scarce, 0)),
)


def _compared(row: Row, part: Callable[[dict[str, float]], float], digits: int) -> str:
    return f"{part(row['cost']):,.{digits}f} / {part(row['waterfall_cost']):,.{digits}f}"


def bench_planner(
    alone: Annotated[
        int | None, typer.Argument(min=0, max=len(SIZES) - 1, help="Measure only this size and print JSON.")
    ] = None,
) -> None:
    """Measure the time of a plan, cold and warm, and compare its cost with the waterfall's.

    Every size is measured in a separate process.
    """
    if alone is not None:
        size, ticks = SIZES[alone]
        json.dump(measure(size, ticks), sys.stdout)
        return
    console, rows = Console(width=190), []
    for number, (size, _) in enumerate(SIZES):
        console.print(f"{size.name} ...", style="dim")
        done = subprocess.run(
            [find_script("penstock-lab"), "bench-planner", str(number)], stdout=subprocess.PIPE, check=True
        )
        rows.append(json.loads(done.stdout))
    write_results(OUT, rows)
    title = f"flow planner; one CPU; every rate and service time ±{JITTER:.0%} from tick to tick"
    console.print(columns_table(title, COLUMNS, rows))
    (target,) = [row for row in rows if row["size"] == TARGET.name]
    met = target["warm_cpu_ms"] < TARGET_WARM_MS
    console.print(
        f"{TARGET.name} warm: {target['warm_cpu_ms']:.1f} ms CPU, {target['warm_ms']:.1f} ms on the clock; "
        f"the target is {TARGET_WARM_MS:.0f} ms: {'met' if met else 'missed'}. Written to {OUT}."
    )
