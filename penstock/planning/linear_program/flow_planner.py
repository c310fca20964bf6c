"""The linear program's planner: the cheapest shares for all demand at once, within residency, capacity and reserve.

If a model has no optimum within the time limit, the waterfall plans it for the tick; the result contains the reason.
Each arc has the reason why its part of the demand is served away from home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from penstock.planning.hysteresis import Hysteresis
from penstock.planning.linear_program.arrays import Floats, Ints
from penstock.planning.linear_program.distances import Distances
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.problem import Problem
from penstock.planning.linear_program.solver import ModelSolver, OutOfTime, Unsolved
from penstock.planning.linear_program.waiting_cost import WAITING_PIECES
from penstock.planning.measurements import measurements
from penstock.planning.plan_builder import PlanBuilder
from penstock.planning.planner import PlanResult
from penstock.planning.share_moves import Key, NearestFirst
from penstock.planning.tick_input import TickInput, Workload, workload
from penstock.planning.waterfall import waterfall_shares

HOME_IS_FULL = "home is filled to its target"
COSTS_LESS = "round trip, queueing, egress and GPU time together cost less here"
KEEPS_RESERVE = "keeps capacity free for traffic that moves if a region is lost"
LEAVING = "moves to another region, step by step"

FULL = 1.0 - 1e-6
"""A pool with this part of its target load is full."""


class ArcDetails:
    """Returns the detail of an arc; the `Detail` of `penstock.planning.plan_slices`.

    Args:
        answers: the flows that the plan was computed from, by model.
        targets: the shares that the plan moves towards, by key.
        distances: the distances of the policy.
    """

    def __init__(
        self, answers: Iterable[Flows], targets: Mapping[Key, Mapping[str, float]], distances: Distances
    ) -> None:
        self._targets = targets
        self._origins = distances.index
        self._pools: dict[str, tuple[dict[str, int], Floats, list[bool], list[float], list[float]]] = {}
        for flows in answers:
            problem, load = flows.problem, flows.load_per_s
            per_pool = problem.shape.min_of_pools
            filled = load >= FULL * problem.target_utilisation * problem.capacity_per_s
            full = per_pool(filled.astype(np.float64)) > 0.0
            edges = np.cumsum(problem.piece_per_s[:, :WAITING_PIECES], axis=1)
            # At the edge of a piece, one request less saves less than one request more costs.
            fewer = per_pool(_price_at(problem, (load[:, None] > edges / FULL).sum(axis=1)))
            more = per_pool(_price_at(problem, (load[:, None] >= edges * FULL).sum(axis=1)))
            for model in problem.shape.models:
                place = {pool.region: at for at, pool in enumerate(problem.shape.pools) if pool.model == model}
                self._pools[model] = (place, problem.reach_s, full.tolist(), fewer.tolist(), more.tolist())

    def __call__(self, key: Key, home: str, server: str) -> str:
        """Return the reason why `server` serves some of the demand of `key`, whose nearest region is `home`."""
        if server not in self._targets[key]:
            return LEAVING
        place, reach_s, full, fewer, more = self._pools[key.model]
        here, there, origin = place[home], place[server], self._origins[key.origin]
        if full[here]:
            return HOME_IS_FULL
        at_home, away = reach_s[origin, here] + more[here], reach_s[origin, there] + fewer[there]
        return COSTS_LESS if away < at_home else KEEPS_RESERVE


def _price_at(problem: Problem, piece: Ints) -> Floats:
    """By group: the cost (s) of GPU time and waiting for one unit of work in this piece of its load."""
    at = np.minimum(piece, WAITING_PIECES - 1)[:, None]
    price: Floats = problem.gpu_s + np.take_along_axis(problem.piece_cost_s, at, axis=1)[:, 0]
    return price


OFFLINE_LIMIT_S = 10.0
"""Time limit (s) of the solver for plans outside the planning loop."""


class FlowPlanner:
    """Plans by a min-cost flow; each solve starts from the last one's basis.

    Args:
        time_limit_s: time limit of the solver for one tick and all models, in seconds.
    """

    def __init__(self, time_limit_s: float = 0.25) -> None:
        self._time_limit_s = time_limit_s
        self._builder = PlanBuilder()
        self._solvers: dict[tuple[str, ...], ModelSolver] = {}
        self._hysteresis = Hysteresis()

    def plan(self, tick: TickInput) -> PlanResult:
        """As `Planner.plan`."""
        builder, work = self._builder.problems(tick.policy), workload(tick)
        measured = measurements(tick.policy, tick.snapshot, tick.now)
        problems = builder.problems(
            work.open_demands, work.open_supply, work.open_in_force, work.limits, tick.now, measured
        )
        nearest_first = builder.distances.nearest_first
        answers, fallbacks = self._solve(problems)
        shares = {key: table for flows in answers for key, table in flows.shares().items()}
        if fallbacks:
            left = {key: demand for key, demand in work.open_demands.items() if key.model in fallbacks}
            shares |= waterfall_shares(tick.policy, left, work.open_supply, nearest_first, work.limits)
            answers += [
                Flows.of_shares(problem, shares) for problem in problems if problem.shape.models[0] in fallbacks
            ]
        targets = self._damped(shares, work, nearest_first, tick.now)
        detail = ArcDetails(answers, targets, builder.distances)
        return self._builder.build(tick, work, targets, answers, fallbacks=fallbacks, detail=detail)

    def _solve(self, problems: Sequence[Problem]) -> tuple[list[Flows], dict[str, str]]:
        """The cheapest flows by model, small models first, and the reason for each model without an optimum in time."""
        shapes = {problem.shape.models: problem.shape for problem in problems}
        self._solvers = {
            models: solver for models, solver in self._solvers.items() if solver.program.shape is shapes.get(models)
        }
        left_s = self._time_limit_s
        answers: list[Flows] = []
        fallbacks: dict[str, str] = {}
        for problem in sorted(problems, key=lambda problem: len(problem.shape.keys)):
            solver = self._solver(problem)
            before_s = solver.ran_s
            try:
                answers.append(solver.solve(problem, left_s))
            except Unsolved as error:
                fallbacks |= dict.fromkeys(problem.shape.models, str(error))
                if not isinstance(error, OutOfTime):
                    del self._solvers[problem.shape.models]
            left_s -= solver.ran_s - before_s
        return answers, fallbacks

    def _solver(self, problem: Problem) -> ModelSolver:
        models = problem.shape.models
        if models not in self._solvers:
            self._solvers[models] = ModelSolver(problem)
        return self._solvers[models]

    def _damped(
        self, wanted: Mapping[Key, Mapping[str, float]], work: Workload, nearest_first: NearestFirst, now: float
    ) -> dict[Key, Mapping[str, float]]:
        """The wanted shares without premature reversals; a change of capacity or overrides delays nothing."""
        for model in {key.model for key in wanted}:
            serving = {(region, pool.max_share) for (region, of), pool in work.supply.items() if of == model}
            self._hysteresis.set_surroundings(model, (serving, work.limits.overrides), now)
        self._hysteresis.keep(wanted)
        damped = dict(wanted)
        for key, target in wanted.items():
            entry = work.in_force.get(key)
            if entry is None:
                continue
            current = {arc.server: arc.share for arc in entry.arcs}
            permitted = work.open_demands[key].regions
            if all(server in permitted and (server, key.model) in work.supply for server in current):
                nearest = nearest_first(key.origin, permitted)
                home = next(name for name in nearest if (name, key.model) in work.supply)
                damped[key] = self._hysteresis.damped(key, home, current, target, now)
        return damped
