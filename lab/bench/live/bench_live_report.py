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
"""Goal of each figure of Penstock, as a multiple of the best other balancer's."""

PARTS = ("mean_s", "p50_s", "p99_s", "p999_s")

FIGURES = (*(f"{what}_{part}" for what in ("ttft", "tpot", "e2e") for part in PARTS), "gpu_s")
"""What is compared, less being better: times to first token, per further token and end to end, and GPU time."""


class Conditions(msgspec.Struct, frozen=True):
    """The conditions, the same for every balancer."""

    time_scale: float
    """How many times as fast as the modelled hardware engines ran and requests came. Latencies are given in the
    hardware's time, so what balancers and this machine add to them is multiplied by this."""
    seconds: float
    """Length of a replay in the hardware's time, warm-up included."""
    warm_up_seconds: float
    rounds: int
    seed: int


class System(msgspec.Struct, frozen=True):
    """One balancer."""

    name: str
    version: str
    settings: tuple[str, ...]


class Scores(msgspec.Struct, frozen=True):
    """One balancer under one demand; medians of the rounds."""

    system: str
    figures: dict[str, float | None]
    """By the names of FIGURES, without those that the workload has not. None is never."""
    spread: dict[str, Measured]
    refused: int
    """Of all rounds together."""
    failed: int
    use: float
    use_imbalance: float
    cached_share: float
    ratios: dict[str, Measured | None]
    """Penstock's figure over this balancer's, round by round; None where Penstock's is never, 0 where this one's is."""
    rounds: list[LiveRun]


class Demand(msgspec.Struct, frozen=True):
    """One workload at one rate, and the number of instances of the balancer."""

    workload: str
    what: str
    engines: dict[str, str]
    """Accelerator by name."""
    slots: int
    """Requests that each engine runs at once."""
    capacity_per_s: float
    """What a central queue that knows nothing of caches would get done (requests/s)."""
    rate_per_s: float
    load: float
    """The one as a part of the other."""
    instances: int


class Contest(msgspec.Struct, frozen=True):
    """All balancers under one demand."""

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
    """Of the medians; None where Penstock's is never."""


class LiveResults(msgspec.Struct, frozen=True):
    """Everything."""

    machine: Machine
    conditions: Conditions
    systems: list[System]
    contests: list[Contest]
    losses: list[Loss]
    """Above MAX_RATIO, the worst first."""
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
        demand: the same for all.
        runs: by balancer, in the order of the rounds.
        missing: why others have none.
    """
    ours = [figures_of(run) for run in runs.get(PENSTOCK, ())]
    return Contest(demand, [_scores(system, found, ours) for system, found in runs.items()], dict(missing))


def _scores(system: str, runs: Sequence[LiveRun], ours: Sequence[Mapping[str, float | None]]) -> Scores:
    rounds = [figures_of(run) for run in runs]
    known = {
        name: [value for found in rounds if (value := found[name]) is not None] for name in FIGURES if name in rounds[0]
    }
    return Scores(
        system=system,
        # If so many were refused in one round that it has no such quantile, all rounds together have none.
        figures={
            name: round(median(values), 5) if len(values) == len(rounds) else None for name, values in known.items()
        },
        spread={name: measured(values, 5) for name, values in known.items() if values},
        refused=sum(run.refused for run in runs),
        failed=sum(run.failed for run in runs),
        use=round(median(run.use.mean for run in runs), 4),
        use_imbalance=round(median(run.use.imbalance for run in runs), 4),
        cached_share=round(median(run.use.cached_share for run in runs), 4),
        ratios={} if system == PENSTOCK else {name: _ratio(name, ours, rounds) for name in known if ours},
        rounds=list(runs),
    )


def _ratio(
    name: str, ours: Sequence[Mapping[str, float | None]], theirs: Sequence[Mapping[str, float | None]]
) -> Measured | None:
    ratios = []
    for mine, other in zip(ours, theirs, strict=False):
        own, peer = mine[name], other[name]
        if own is None:
            return None
        ratios.append(own / peer if peer else 0.0)
    return measured(ratios)


def best_other(contest: Contest, figure: str) -> tuple[str, float] | None:
    """The least of the other balancers' figures and whose it is; None if no other has one."""
    others = [
        (value, scores.system)
        for scores in contest.scores
        if scores.system != PENSTOCK and (value := scores.figures.get(figure)) is not None
    ]
    return (min(others)[1], min(others)[0]) if others else None


def to_best(contest: Contest) -> dict[str, Loss]:
    """Each figure of Penstock beside the best of the others', a loss or not; empty without one or the other."""
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
        yield goal(f"{figure}, worst of {len(ratios)} contests, as a multiple of the best other's", MAX_RATIO, worst)


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
