"""Runs all combinations of workload, load, number of instances and balancer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from adapters.servers.errors import MissingBinary, ServerError
from lab.bench.live.bench_live_report import PENSTOCK, Conditions, Contest, Demand, System, contest_of
from lab.bench.live.capacity import capacity_per_s
from lab.bench.live.contest import LiveRun, Setup, contest
from lab.bench.live.systems import peers_for, system_of
from lab.bench.live.workloads import Draw, Workload
from lab.bench.peers.peer import Peer
from lab.replay.replay_workload import PlannedRequest

CAPACITY_RATE_PER_S, CAPACITY_SECONDS = 10.0, 120.0
"""Rate and duration of the workload that capacity is computed from: about 1,200 requests."""


class Selection(msgspec.Struct, frozen=True):
    """Selection of the runs."""

    workloads: tuple[Workload, ...]
    loads: tuple[float, ...]
    """Loads, as shares of the engines' capacity."""
    rate_per_s: float | None
    """Rate in the hardware's time, which replaces `loads`."""
    instances: tuple[int, ...]
    peers: tuple[str, ...]
    engines_each: int
    """Number of engines of each accelerator type."""
    data: Path
    """Folder of recorded traces."""


def run_series(
    selection: Selection, conditions: Conditions, directory: Path, progress: Callable[[str], None]
) -> tuple[list[System], list[Contest], dict[str, str]]:
    """Execute all contests. Returns the balancers, the contests, and the reasons why other balancers are missing.

    Args:
        selection: selection of the runs.
        conditions: conditions of every run.
        directory: directory for the files of the runs.
        progress: called with a description of the next run.

    Raises:
        ServerError: engines or Penstock do not start.
        TraceError: a recorded trace is invalid.
    """
    systems: dict[str, System] = {}
    missing: dict[str, str] = {}
    contests: list[Contest] = []
    series = _Series(selection, conditions, directory, progress)
    for demand, workload in _demands(selection, conditions):
        balancers: list[Peer | None] = [None]
        for peer in peers_for(demand.slots, demand.instances):
            if peer.name in selection.peers and peer.name not in missing:
                balancers.append(peer)
        for balancer in list(balancers):
            try:
                found = system_of(balancer)
                systems.setdefault(found.name, found)
            except MissingBinary as error:
                balancers.remove(balancer)
                if balancer is not None:
                    missing[balancer.name] = str(error)
        contests.append(series.contest(demand, workload, balancers))
    return list(systems.values()), contests, missing


def _demands(selection: Selection, conditions: Conditions) -> list[tuple[Demand, Workload]]:
    found = []
    for workload in selection.workloads:
        engines = workload.engines(selection.engines_each)
        draw = Draw(CAPACITY_RATE_PER_S, CAPACITY_SECONDS, selection.data, Random(conditions.seed))
        capacity = capacity_per_s([planned.lengths for planned in workload.plan(draw, 1.0)], engines)
        rates = [selection.rate_per_s] if selection.rate_per_s else [load * capacity for load in selection.loads]
        found += [
            (
                Demand(
                    workload=workload.name,
                    what=workload.what,
                    engines={engine.name: engine.accelerator for engine in engines},
                    slots=workload.max_num_seqs,
                    capacity_per_s=round(capacity, 3),
                    rate_per_s=round(rate, 3),
                    load=round(rate / capacity, 3),
                    instances=instances,
                ),
                workload,
            )
            for rate in rates
            for instances in selection.instances
        ]
    return found


class _Series:
    """The runs of a selection under the same conditions."""

    def __init__(
        self, selection: Selection, conditions: Conditions, directory: Path, progress: Callable[[str], None]
    ) -> None:
        self._selection, self._conditions = selection, conditions
        self._directory, self._progress = directory, progress

    def contest(self, demand: Demand, workload: Workload, balancers: list[Peer | None]) -> Contest:
        """Measure all balancers with one demand, in rounds with rotating order."""
        conditions, engines = self._conditions, workload.engines(self._selection.engines_each)
        warm_up_s = conditions.warm_up_seconds / conditions.time_scale
        runs: dict[str, list[LiveRun]] = {PENSTOCK if peer is None else peer.name: [] for peer in balancers}
        missing: dict[str, str] = {}
        for number in range(conditions.rounds):
            planned = self._plan(workload, demand, number)
            turn = number % len(balancers)
            for peer in balancers[turn:] + balancers[:turn]:
                name = PENSTOCK if peer is None else peer.name
                if name in missing:
                    continue
                self._progress(
                    f"{demand.workload} at {demand.load:.0%}, round {number + 1}: {demand.instances} x {name}"
                )
                place = self._directory / f"{demand.workload}-{demand.load}-{demand.instances}-{number}-{name}"
                setup = Setup(peer, demand.instances)
                try:
                    run = contest(setup, engines, planned, conditions.time_scale, warm_up_s, place)
                except ServerError as error:
                    if peer is None:
                        raise
                    missing[name] = " ".join(str(error).split())
                    continue
                if run.ok or not run.codes.keys() <= {"http_404", "http_405"}:
                    runs[name].append(run)
                else:
                    missing[name] = "does not serve this API: 404 to every request"
        served = {name: found for name, found in runs.items() if found and name not in missing}
        return contest_of(demand, served, missing)

    def _plan(self, workload: Workload, demand: Demand, number: int) -> list[PlannedRequest]:
        conditions = self._conditions
        rng = Random(conditions.seed + number)
        draw = Draw(demand.rate_per_s, conditions.seconds, self._selection.data, rng, conditions.known_lengths)
        return workload.plan(draw, conditions.time_scale)
