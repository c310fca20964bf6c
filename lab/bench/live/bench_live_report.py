"""The live benchmark's results: live.json, ratios to the other balancers, and the printed tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec
from rich.table import Table

from lab.bench.bench_results import Goal, Machine, Measured, goal, measured, table
from lab.bench.live.contest import LiveRun, Times

PENSTOCK = "penstock"

MAX_RATIO = 1.03
"""Goal of each figure of Penstock, as a multiple of the figure of the best other balancer."""

PARTS = ("mean_s", "p50_s", "p99_s", "p999_s")

FIGURES = (*(f"{what}_{part}" for what in ("ttft", "tpot", "e2e") for part in PARTS), "gpu_s")
"""Names of the compared figures, lower is better: time to first token, per token and end to end, and GPU time."""


class Conditions(msgspec.Struct, frozen=True):
    """The conditions, the same for every balancer."""

    time_scale: float
    """Speed of engines and arrivals relative to the modelled hardware. Latencies are in the hardware's time, so delays
    of balancers and of this machine are multiplied by this factor."""
    seconds: float
    """Duration of a replay in the hardware's time, warm-up included."""
    warm_up_seconds: float
    rounds: int
    seed: int
    known_lengths: bool = False
    """Whether `max_tokens` of a chat is the length of its answer; else it is 1,024 for all."""


class System(msgspec.Struct, frozen=True):
    """One balancer."""

    name: str
    version: str
    settings: tuple[str, ...]


class Scores(msgspec.Struct, frozen=True):
    """Results of one balancer with one demand: medians of the rounds."""

    system: str
    figures: dict[str, float | None]
    """Figures by the names in FIGURES that apply to the workload. None is infinite."""
    spread: dict[str, Measured]
    refused: int
    """Number of refused requests in all rounds."""
    failed: int
    use: float
    use_imbalance: float
    cached_share: float
    rounds: list[LiveRun]


class Demand(msgspec.Struct, frozen=True):
    """One workload at one rate, and the number of instances of the balancer."""

    workload: str
    what: str
    engines: dict[str, str]
    """Accelerator by name of the engine."""
    slots: int
    """Number of requests that each engine runs concurrently."""
    capacity_per_s: float
    """Rate (requests/s) that a central queue without knowledge of caches achieves."""
    rate_per_s: float
    load: float
    """`rate_per_s` as a share of `capacity_per_s`."""
    instances: int


class Contest(msgspec.Struct, frozen=True):
    """Results of all balancers with one demand."""

    demand: Demand
    scores: list[Scores]
    missing: dict[str, str]
    """Balancers that do not serve this workload, with the reason."""


class Loss(msgspec.Struct, frozen=True):
    """A figure of Penstock that is worse than that of the best other balancer."""

    workload: str
    load: float
    instances: int
    figure: str
    penstock: float | None
    best: float
    best_system: str
    ratio: float | None
    """Ratio of the medians; None if Penstock's is infinite."""


class LiveResults(msgspec.Struct, frozen=True):
    """All results."""

    machine: Machine
    conditions: Conditions
    systems: list[System]
    contests: list[Contest]
    losses: list[Loss]
    """Figures with a ratio above MAX_RATIO, worst first."""
    missing: dict[str, str]
    goals: list[Goal]


def figures_of(run: LiveRun) -> dict[str, float | None]:
    """The figures of one run by name."""
    found: dict[str, float | None] = {}
    for what, times in (("ttft", run.ttft), ("tpot", run.tpot), ("e2e", run.e2e)):
        if isinstance(times, Times):
            found |= {f"{what}_{part}": getattr(times, part) for part in PARTS}
    return found | {"gpu_s": run.use.gpu_s}


def contest_of(demand: Demand, runs: Mapping[str, Sequence[LiveRun]], missing: Mapping[str, str]) -> Contest:
    """Combine the rounds of every balancer.

    Args:
        demand: the demand of all balancers.
        runs: runs by balancer, in the order of the rounds.
        missing: reasons why other balancers have no runs.
    """
    return Contest(demand, [_scores(system, found) for system, found in runs.items()], dict(missing))


def _scores(system: str, runs: Sequence[LiveRun]) -> Scores:
    rounds = [figures_of(run) for run in runs]
    known = {
        name: [value for found in rounds if (value := found[name]) is not None] for name in FIGURES if name in rounds[0]
    }
    return Scores(
        system=system,
        # If a quantile is infinite in one round because of refused requests, the median is infinite too.
        figures={
            name: round(median(values), 5) if len(values) == len(rounds) else None for name, values in known.items()
        },
        spread={name: measured(values, 5) for name, values in known.items() if values},
        refused=sum(run.refused for run in runs),
        failed=sum(run.failed for run in runs),
        use=round(median(run.use.mean for run in runs), 4),
        use_imbalance=round(median(run.use.imbalance for run in runs), 4),
        cached_share=round(median(run.use.cached_share for run in runs), 4),
        rounds=list(runs),
    )


def best_other(contest: Contest, figure: str) -> tuple[str, float] | None:
    """Name and figure of the best balancer other than Penstock; None if no other balancer has the figure."""
    others = [
        (value, scores.system)
        for scores in contest.scores
        if scores.system != PENSTOCK and (value := scores.figures.get(figure)) is not None
    ]
    return (min(others)[1], min(others)[0]) if others else None


def to_best(contest: Contest) -> dict[str, Loss]:
    """Compare each figure of Penstock with that of the best other balancer, loss or not; empty if either is missing."""
    ours = next((scores for scores in contest.scores if scores.system == PENSTOCK), None)
    demand, found = contest.demand, {}
    for figure, own in ours.figures.items() if ours is not None else ():
        best = best_other(contest, figure)
        if best is not None and best[1] > 0.0:
            ratio = None if own is None else round(own / best[1], 3)
            found[figure] = Loss(demand.workload, demand.load, demand.instances, figure, own, best[1], best[0], ratio)
    return found


def live_results(
    machine: Machine,
    conditions: Conditions,
    systems: Sequence[System],
    contests: Sequence[Contest],
    missing: Mapping[str, str],
) -> LiveResults:
    """Combine all results."""
    compared = [found for contest in contests for found in to_best(contest).values()]
    losses = [found for found in compared if found.ratio is None or found.ratio > MAX_RATIO]
    losses.sort(key=lambda loss: -loss.ratio if loss.ratio is not None else float("-inf"))
    return LiveResults(
        machine, conditions, list(systems), list(contests), losses, dict(missing), list(_goals(compared))
    )


def _goals(compared: Sequence[Loss]) -> Iterable[Goal]:
    for figure in FIGURES:
        ratios = [found.ratio for found in compared if found.figure == figure]
        if not ratios:
            continue
        worst = max(float("inf") if ratio is None else ratio for ratio in ratios)
        yield goal(f"{figure}, worst of {len(ratios)} contests, as a multiple of the best peer's", MAX_RATIO, worst)


SHOWN = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "e2e_mean_s", "e2e_p50_s", "e2e_p99_s", "e2e_p999_s", "gpu_s")


def contest_table(contest: Contest) -> Table:
    """Return one contest as a table."""
    demand = contest.demand
    rows = [
        (
            scores.system,
            *(_cell(scores.figures, figure) for figure in SHOWN),
            f"{scores.cached_share:.2f}",
            str(scores.refused),
            str(scores.failed),
            f"{max(run.lag_p99_ms for run in scores.rounds):.0f}",
        )
        for scores in contest.scores
    ]
    counted = sum(run.requests for run in contest.scores[0].rounds) if contest.scores else 0
    title = (
        f"{demand.workload} at {demand.load:.0%} of capacity ({demand.rate_per_s:.1f}/s), {demand.instances} "
        f"instance{'s' if demand.instances > 1 else ''}, {counted} requests each"
    )
    header = ("", *(figure.removesuffix("_s").replace("_", " ") for figure in SHOWN), "cached", "refused", "failed")
    return table(title, (*header, "lag ms"), rows)


def _cell(figures: Mapping[str, float | None], figure: str) -> str:
    if figure not in figures:
        return "-"
    value = figures[figure]
    return "never" if value is None else f"{value:.4f}" if figure.startswith("tpot") else f"{value:.2f}"
