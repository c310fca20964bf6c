"""The live benchmark's results: live.json, the printed table, and the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec
from rich.table import Table

from lab.bench.bench_results import Goal, Machine, Measured, goal, measured, table
from lab.bench.live.contest import LiveRun

PENSTOCK = "penstock"

PART_OF_BEST_ALONE, PART_OF_BEST_OF_THREE = 1.0, 0.5
"""Goal of Penstock's end-to-end p99, as a share of the best other balancer's with as many instances."""


class Conditions(msgspec.Struct, frozen=True):
    """The conditions, the same for every balancer."""

    workload: str
    engines: dict[str, str]
    """Accelerator by name."""
    seats: int
    """Requests that each engine runs at once."""
    time_scale: float
    """How many times as fast as the modelled hardware engines ran and requests came. Latencies are given in the
    hardware's time, so what balancers and this machine add to them is multiplied by this."""
    rate_per_s: float
    """Requests per second in the hardware's time, warm-up included."""
    seconds: float
    """Length of a replay in that time."""
    warm_up_seconds: float
    rounds: int


class Balancer(msgspec.Struct, frozen=True):
    """One balancer with one number of instances; medians of the rounds."""

    name: str
    version: str
    settings: tuple[str, ...]
    instances: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    ttft_p999_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    e2e_p999_s: float | None
    refused: int
    """Of all rounds together."""
    failed: int
    use: float
    use_imbalance: float
    spread: dict[str, Measured]
    rounds: list[LiveRun]


class LiveResults(msgspec.Struct, frozen=True):
    """Everything."""

    machine: Machine
    conditions: Conditions
    balancers: list[Balancer]
    missing: dict[str, str]
    goals: list[Goal]


def balancer(name: str, version: str, settings: tuple[str, ...], instances: int, runs: Sequence[LiveRun]) -> Balancer:
    """Combine the rounds of one balancer."""
    figures: dict[str, list[float | None]] = {
        f"{what}_{part}_s": [getattr(getattr(run, what), f"{part}_s") for run in runs]
        for what in ("ttft", "e2e")
        for part in ("p50", "p99", "p999")
    }
    known = {field: [value for value in values if value is not None] for field, values in figures.items()}
    return Balancer(
        name=name,
        version=version,
        settings=settings,
        instances=instances,
        refused=sum(run.refused for run in runs),
        failed=sum(run.failed for run in runs),
        use=round(median(run.use.mean for run in runs), 4),
        use_imbalance=round(median(run.use.imbalance for run in runs), 4),
        spread={field: measured(values) for field, values in known.items() if values},
        rounds=list(runs),
        **{
            # If so many were refused in one round that it has no such quantile, all rounds together have none.
            field: round(median(known[field]), 4) if len(known[field]) == len(runs) else None
            for field in figures
        },
    )


def live_results(
    machine: Machine, conditions: Conditions, balancers: Sequence[Balancer], missing: Mapping[str, str]
) -> LiveResults:
    """Combine all results."""
    goals = [
        goal(
            f"p99 end to end with {instances} instance{'s' if instances > 1 else ''}, as a part of the best other's",
            part,
            _part_of_best(balancers, instances),
        )
        for instances, part in ((1, PART_OF_BEST_ALONE), (3, PART_OF_BEST_OF_THREE))
    ]
    return LiveResults(machine, conditions, list(balancers), dict(missing), goals)


def _part_of_best(balancers: Sequence[Balancer], instances: int) -> float | None:
    alike = [entry for entry in balancers if entry.instances == instances]
    ours = next((entry.e2e_p99_s for entry in alike if entry.name == PENSTOCK), None)
    others = [entry.e2e_p99_s for entry in alike if entry.name != PENSTOCK and entry.e2e_p99_s is not None]
    return ours / min(others) if ours is not None and others else None


def live_table(found: LiveResults) -> Table:
    """Return the comparison as a table."""
    rows = []
    for entry in sorted(found.balancers, key=lambda entry: entry.instances):
        rows.append(
            (
                f"{entry.instances} x {entry.name}",
                _seconds(entry.ttft_p50_s),
                _seconds(entry.ttft_p99_s),
                _seconds(entry.ttft_p999_s),
                _seconds(entry.e2e_p50_s),
                _seconds(entry.e2e_p99_s),
                _seconds(entry.e2e_p999_s),
                str(entry.refused),
                str(entry.failed),
                f"{entry.use:.2f}",
                f"{entry.use_imbalance:.3f}",
                f"{max(run.lag_p99_ms for run in entry.rounds):.0f}",
            )
        )
    header = (
        "",
        "ttft p50 s",
        "p99",
        "p99.9",
        "e2e p50 s",
        "p99",
        "p99.9",
        "refused",
        "failed",
        "use",
        "imbalance",
        "lag ms",
    )
    counted = sum(run.requests for run in found.balancers[0].rounds) if found.balancers else 0
    return table(f"{counted} requests each, in the time of the modelled hardware", header, rows)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"
