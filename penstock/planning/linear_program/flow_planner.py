"""The linear program's planner: the cheapest shares for all demand at once, within residency, capacity and reserve.

If a model has no optimum within the time limit, the waterfall plans it for the tick; the result contains the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.planning.hysteresis import Hysteresis
from penstock.planning.linear_program.arc_details import ArcDetails
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.problem import Problem
from penstock.planning.linear_program.solver import ModelSolver, OutOfTime, Unsolved
from penstock.planning.measurements import measurements
from penstock.planning.plan_builder import PlanBuilder
from penstock.planning.planner import PlanResult
from penstock.planning.share_moves import Key, NearestFirst
from penstock.planning.tick_input import TickInput, Workload, workload
from penstock.planning.waterfall import waterfall_shares

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
