"""One problem's linear program in HiGHS, kept from tick to tick.

Only costs and bounds change between ticks, and HiGHS starts each solve from the basis of the last one. There can be
many N-1 rows, of which few bind, so a row is added only when a solution violates it.

Properties of HiGHS 1.15, and their consequences:

- its run time accumulates, so the time limit of one solve is the time run so far plus the limit (HiGHS issue 1331);
- the parallel simplex ignores a given basis (issue 2913) and interior point has none, so the solver is the serial dual
  simplex;
- a warm start may report a solution as optimal that is not optimal (issues 3194, 3294), so the duality gap of each
  solution is checked here, and the program is solved again without the basis if the gap does not close.
"""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray

from penstock.planning.linear_program.arrays import Floats
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.n_minus_one import excesses
from penstock.planning.linear_program.problem import Problem
from penstock.planning.linear_program.program import Bounds, Matrix, Program

MAX_GAP = 1e-6
"""Maximum relative gap between the cost of a solution and the bound that its dual prices prove."""

NEGLIGIBLE_S = 1e-5
"""Reduced costs (s) below this are rounding errors."""

NOTICEABLE_PER_S = 1e-6
"""Minimum growth of a shortfall, in units/s and as a part of the region's capacity, that adds an N-1 row."""


class Unsolved(Exception):
    """HiGHS has found no optimal solution."""


class OutOfTime(Unsolved):
    """HiGHS has found no optimal solution yet; the next solve continues from the interrupted one."""


class ModelSolver:
    """HiGHS with the linear program of one shape.

    Args:
        problem: any problem of the shape.
    """

    def __init__(self, problem: Problem) -> None:
        self.program = Program(problem.shape)
        self._highs = _dual_simplex()
        self._bounds = self.program.bounds(problem)
        self.cost = 0.0
        """Cost of the last optimum, in seconds of latency times requests per second."""
        _pass(self._highs, self.program.matrix(), self._bounds)

    @property
    def ran_s(self) -> float:
        """Total run time of HiGHS on this program, in seconds."""
        return float(self._highs.getRunTime())

    def solve(self, problem: Problem, limit_s: float) -> Flows:
        """The cheapest flows of a tick.

        Args:
            problem: of this shape.
            limit_s: time limit of HiGHS, in seconds.

        Raises:
            OutOfTime: no optimum within the limit.
            Unsolved: HiGHS does not find an optimum.
        """
        self._change(self.program.bounds(problem))
        ends_s = self.ran_s + limit_s
        while True:
            values = self._optimum(ends_s)
            flow = self.program.flow(values)
            used = np.flatnonzero(flow > 0.0)
            key, pool = self.program.arc_key[used], self.program.arc_pool[used]
            flows = Flows(problem, key, pool, flow[used], self.program.load(values))
            if not problem.survive_one_loss or not self._add_violated(flows, values):
                return flows

    def _add_violated(self, flows: Flows, values: Floats) -> bool:
        """Add, for each lost region, the N-1 row that the solution violates most; returns whether any row was added."""
        program, sets = self.program, flows.problem.shape.confinements
        capacity = flows.problem.capacity_per_s
        found = excesses(sets, flows.by_class(), flows.load_per_s, capacity)
        found[sets.settled] = -np.inf
        found[program.row_set, program.row_region] = -np.inf
        worst = found.argmax(axis=0) if len(found) else np.zeros(0, np.intp)
        noticeable = NOTICEABLE_PER_S * (1.0 + capacity @ sets.groups_in)
        counted = values[program.shortfalls_at : program.draws_at] + noticeable
        lost = np.flatnonzero(found.max(axis=0, initial=-np.inf) > counted)
        if not len(lost):
            return False
        rows = program.add_n_minus_one(worst[lost], lost)
        free = np.full(len(lost), np.inf)
        self._highs.addRows(len(lost), -free, free, len(rows.minor), rows.starts[:-1], rows.minor, rows.value)
        self._change(program.bounds(flows.problem))
        return True

    def _change(self, bounds: Bounds) -> None:
        """Update the costs and bounds in HiGHS. Only changed ones are passed, since passing many columns takes long."""
        last, highs = self._bounds, self._highs
        at = _changed((last.cost, bounds.cost))
        if len(at):
            highs.changeColsCost(len(at), at, bounds.cost[at])
        at = _changed((last.lower, bounds.lower), (last.upper, bounds.upper))
        if len(at):
            highs.changeColsBounds(len(at), at, bounds.lower[at], bounds.upper[at])
        at = _changed((last.row_lower, bounds.row_lower), (last.row_upper, bounds.row_upper))
        if len(at):
            highs.changeRowsBounds(len(at), at, bounds.row_lower[at], bounds.row_upper[at])  # type: ignore[attr-defined]
        self._bounds = bounds

    def _optimum(self, ends_s: float) -> Floats:
        """The values of all columns in an optimum of the program as it is."""
        for _ in range(2):
            self._highs.setOptionValue("time_limit", max(ends_s, self.ran_s))
            self._highs.run()
            status = self._highs.getModelStatus()
            if status == highspy.HighsModelStatus.kTimeLimit:
                raise OutOfTime("the solver ran out of time")
            if status != highspy.HighsModelStatus.kOptimal:
                raise Unsolved(f"the solver stopped: {self._highs.modelStatusToString(status).lower()}")
            solution = self._highs.getSolution()
            values = np.array(solution.col_value)
            self.cost = float((self._bounds.cost * values).sum())
            if self._is_optimal(values, np.array(solution.row_dual), np.array(solution.col_dual)):
                return values
            self._highs.clearSolver()
        raise Unsolved("the solver's optimum does not close its duality gap")

    def _is_optimal(self, values: Floats, row_prices: Floats, reduced_costs: Floats) -> bool:
        """Whether the solution's dual prices prove, by weak duality, that no other solution is cheaper."""
        bounds = self._bounds
        bound = _least(row_prices, bounds.row_lower, bounds.row_upper) + _least(
            reduced_costs, bounds.lower, bounds.upper
        )
        slack = MAX_GAP * max(1.0, abs(self.cost)) + NEGLIGIBLE_S * float(np.abs(values).sum())
        return self.cost - bound <= slack


def _changed(*pairs: tuple[Floats, Floats]) -> NDArray[np.int32]:
    """The indexes at which any of these arrays differ; new elements of the second array differ."""
    differs = np.ones(len(pairs[0][1]), np.bool_)
    known = len(pairs[0][0])
    differs[:known] = np.logical_or.reduce([before != after[:known] for before, after in pairs])
    return np.flatnonzero(differs).astype(np.int32)


def _least(prices: Floats, lower: Floats, upper: Floats) -> float:
    """The minimum sum of priced amounts within their bounds; negligible prices count as zero."""
    priced = np.abs(prices) > NEGLIGIBLE_S
    return float((prices[priced] * np.where(prices > 0.0, lower, upper)[priced]).sum())


def _pass(highs: highspy.Highs, matrix: Matrix, bounds: Bounds) -> None:
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(bounds.cost), len(bounds.row_lower)
    model.col_cost_, model.col_lower_, model.col_upper_ = bounds.cost, bounds.lower, bounds.upper
    model.row_lower_, model.row_upper_ = bounds.row_lower, bounds.row_upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = matrix
    highs.passModel(model)


def _dual_simplex() -> highspy.Highs:
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("solver", "simplex")
    highs.setOptionValue("simplex_strategy", 1)
    highs.setOptionValue("presolve", "off")
    return highs
