"""Compares the simulator with the live benchmark on the same requests, engines and balancers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import median

import msgspec

from lab.bench.live.bench_live_report import PENSTOCK as LIVE_PENSTOCK
from lab.bench.live.bench_live_report import Conditions, Contest, Demand, LiveResults
from lab.bench.live.workloads import WORKLOADS, Draw, Kind
from lab.quantile import quantile
from lab.simulate.contenders import LOCAL_LEAST_REQUEST, PENSTOCK, AgentSettings, run
from lab.simulate.fleets import CHAT_COST, ChatFleet, EngineKind
from lab.traces.trace import TraceRequest

CONTENDERS = {
    LIVE_PENSTOCK: PENSTOCK,
    "envoy": LOCAL_LEAST_REQUEST,
    "haproxy": LOCAL_LEAST_REQUEST,
    "nginx": LOCAL_LEAST_REQUEST,
}
"""The simulated counterpart of each live balancer. Envoy, HAProxy and nginx use least request with own counts."""

FIGURES = ("ttft_p50_s", "ttft_p99_s", "e2e_p50_s", "e2e_p99_s")

WITHIN = 0.1
"""Maximum relative difference of a live and a simulated figure that agree."""


class CannotCompare(Exception):
    """A live result cannot be simulated; the message states the reason and the remedy."""


class Comparison(msgspec.Struct, frozen=True):
    """The live and the simulated value of a figure of a balancer."""

    workload: str
    load: float
    instances: int
    system: str
    figure: str
    live: float
    simulated: float

    @property
    def ratio(self) -> float:
        """The simulated value divided by the live value."""
        return self.simulated / self.live

    @property
    def agrees(self) -> bool:
        """Whether the values differ by at most WITHIN."""
        return abs(self.ratio - 1.0) <= WITHIN


def compare(results: LiveResults, data: Path) -> list[Comparison]:
    """Simulate the chat contests of a live result, and compare the figures.

    Args:
        results: results of `bench-live`.
        data: directory of the recorded traces that `bench-live` used.

    Raises:
        CannotCompare: no contest can be simulated, or the requests differ from the requests of the live run.
        TraceError: a recorded trace is invalid.
    """
    found = [comparison for contest in results.contests for comparison in _compare(contest, results.conditions, data)]
    if not found:
        raise CannotCompare("no contest of chats in the results; run bench-live with --workload azure-conversation")
    return found


def _compare(contest: Contest, conditions: Conditions, data: Path) -> list[Comparison]:
    demand = contest.demand
    workload = WORKLOADS.get(demand.workload)
    if workload is None or workload.kind is not Kind.CHAT:
        return []
    rounds = [_requests(demand, conditions, data, number) for number in range(conditions.rounds)]
    counts = [sum(request.at_s >= conditions.warm_up_seconds for request in requests) for requests in rounds]
    found, simulated = [], {}
    for scores in contest.scores:
        contender = CONTENDERS.get(scores.system)
        if contender is None:
            continue
        counted = [live_run.requests for live_run in scores.rounds]
        if counted != counts:
            raise CannotCompare(
                f"{demand.workload}: {counts} requests, but the live run had {counted}; set --data as in the live run"
            )
        if contender not in simulated:
            simulated[contender] = _simulated(contender, demand, rounds, conditions)
        for figure in FIGURES:
            live = scores.figures.get(figure)
            if live:
                found.append(
                    Comparison(
                        demand.workload,
                        demand.load,
                        demand.instances,
                        scores.system,
                        figure,
                        live,
                        round(simulated[contender][figure], 5),
                    )
                )
    return found


def _requests(demand: Demand, conditions: Conditions, data: Path, number: int) -> list[TraceRequest]:
    """Return the requests of one round, with arrival times (s) of the modelled hardware."""
    draw = Draw(demand.rate_per_s, conditions.seconds, data, Random(conditions.seed + number))
    planned = WORKLOADS[demand.workload].plan(draw, 1.0)
    return [msgspec.structs.replace(request.lengths, at_s=request.at_s) for request in planned]


def _simulated(
    contender: str, demand: Demand, rounds: Sequence[Sequence[TraceRequest]], conditions: Conditions
) -> dict[str, float]:
    """Return the figures by name: medians over the rounds, as in the live benchmark."""
    kinds = tuple(
        EngineKind(accelerator, count, demand.slots) for accelerator, count in Counter(demand.engines.values()).items()
    )
    by_round: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    model = WORKLOADS[demand.workload].model
    for number, requests in enumerate(rounds):
        fleet = partial(ChatFleet, model=model, cost=CHAT_COST, kinds=kinds, known_lengths=conditions.known_lengths)
        region = run(contender, fleet, requests, AgentSettings(demand.instances), conditions.seed + number)
        counted = [served for served in region.served if served.request.at_s >= conditions.warm_up_seconds]
        first_s = [served.first_s for served in counted if served.first_s is not None]
        end_s = [served.end_s for served in counted if served.end_s is not None]
        for name, values in (("ttft", first_s), ("e2e", end_s)):
            by_round[f"{name}_p50_s"].append(quantile(values, 0.5) or 0.0)
            by_round[f"{name}_p99_s"].append(quantile(values, 0.99) or 0.0)
    return {figure: median(values) for figure, values in by_round.items()}


def misranked(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the pairs of balancers that differ by more than WITHIN, live and simulated, in opposite directions."""
    by_figure: dict[tuple[str, float, int, str], list[Comparison]] = {}
    for comparison in comparisons:
        by_figure.setdefault(
            (comparison.workload, comparison.load, comparison.instances, comparison.figure), []
        ).append(comparison)
    found = []
    for (workload, load, instances, figure), group in by_figure.items():
        for a, b in combinations(group, 2):
            live, simulated = a.live / b.live - 1.0, a.simulated / b.simulated - 1.0
            if live * simulated < 0.0 and min(abs(live), abs(simulated)) > WITHIN:
                found.append(f"{workload} at {load:.0%}, {instances} instances, {figure}: {a.system} and {b.system}")
    return found
