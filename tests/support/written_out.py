"""The complete linear program of a plan, as a reference for the program that is built arc by arc."""

from __future__ import annotations

import highspy
import numpy as np
from hypothesis import assume

from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.plan_cost import evaluate
from penstock.planning.linear_program.problem import RETURN_COST, Problem
from penstock.planning.linear_program.solver import ModelSolver
from penstock.planning.linear_program.waiting_cost import WAITING_PIECES
from tests.support.planner_worlds import World

PATIENT_S = 30.0


def optimum(problem: Problem) -> tuple[Flows, float]:
    """The planner's flows, and their cost as computed by the solver."""
    solver = ModelSolver(problem)
    flows = solver.solve(problem, PATIENT_S)
    return flows, solver.cost


class WrittenOut:
    """The program with every permitted arc and, for every region, the complete rerouting at its loss.

    Args:
        weigh: whether ordinary costs count; otherwise only scarcity counts.
    """

    def __init__(self, problem: Problem, *, weigh: bool = True) -> None:
        self._highs = highspy.Highs()
        self._highs.setOptionValue("output_flag", False)
        self._problem, self._price, self._weigh = problem, problem.prices(), weigh
        shape = problem.shape
        self._keys, self._pools = range(len(shape.keys)), range(len(shape.pools))
        self._may = [[bool(shape.permitted[shape.class_of[k], p]) for p in self._pools] for k in self._keys]
        self._flow: dict[tuple[int, int], list[int]] = {}
        """Columns of the flow that stays and of the flow that moves, by key and pool."""
        self._load: dict[int, list[int]] = {p: [] for p in self._pools}
        self.reserve: list[int] = []
        held = {(k, p): d for k, p, d in zip(*self._held(problem), strict=True)}
        for k in self._keys:
            self._add_demand(k, held)
        for p in self._pools:
            self._add_capacity(p)
        for lost in self._pools if problem.survive_one_loss else ():
            self._add_loss(lost)
        self._highs.run()
        assert self._highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        self.cost = self._highs.getInfo().objective_function_value
        values = self._highs.getSolution().col_value
        self.missing_at_losses = sum(values[c] for c in self.reserve)

    def _add_demand(self, k: int, held: dict[tuple[int, int], float]) -> None:
        """Add rows that assign all demand of a key, within the limits of spillover and of ramps."""
        problem, demand = self._problem, float(self._problem.demand[k])
        for p in self._pools:
            if self._may[k][p]:
                reach = float(problem.reach_s[problem.shape.origin_of[k], p]) * self._weigh
                price = (
                    problem.change_s * bool(problem.held.planned[k]) * (RETURN_COST if p == problem.home[k] else 1.0)
                )
                both = [self._column(reach, held.get((k, p), 0.0)), self._column(reach + self._weigh * price)]
                self._flow[k, p] = both
                self._load[p] += both
        for p in self._pools:
            if self._may[k][p] and p == problem.origin[k] and problem.slots[p] > 0.0:
                ramp = problem.max_share[p] if problem.capped[k] else 1.0
                least = float(min(problem.kept[k], ramp)) * demand
                self._row(least, np.inf, [(c, 1.0) for c in self._flow[k, p]])
            if self._may[k][p] and problem.capped[k] and problem.max_share[p] < 1.0:
                self._row(-np.inf, float(problem.max_share[p]) * demand, [(c, 1.0) for c in self._flow[k, p]])
        self._row(demand, demand, [(c, 1.0) for p in self._pools if self._may[k][p] for c in self._flow[k, p]])

    def _add_capacity(self, p: int) -> None:
        """Add rows by which the load of a pool fills the pieces of its cost function."""
        problem = self._problem
        price = self._price
        costs = [*problem.piece_cost_s[p, :WAITING_PIECES] * self._weigh]
        costs += [price.past_target, price.yields[p], price.no_room]
        pieces = [
            self._column(float(cost) + self._weigh * float(problem.gpu_s[p]), float(width))
            for cost, width in zip(costs, problem.piece_per_s[p], strict=True)
        ]
        self._row(0.0, 0.0, [(c, 1.0) for c in self._load[p]] + [(c, -1.0) for c in pieces])

    def _add_loss(self, lost: int) -> None:
        """Add rows that reroute the load of a lost region to other regions; demand without capacity has a price."""
        arrives: dict[int, list[int]] = {p: [] for p in self._pools}
        for k in self._keys:
            if self._may[k][lost]:
                missing = self._column(self._price.reserve)
                self.reserve.append(missing)
                moved = [missing]
                for p in self._pools:
                    if p != lost and self._may[k][p]:
                        moved.append(self._column(0.0))
                        arrives[p].append(moved[-1])
                self._row(0.0, 0.0, [(c, 1.0) for c in self._flow[k, lost]] + [(c, -1.0) for c in moved])
        for p in self._pools:
            if p != lost:
                capacity = float(self._problem.capacity_per_s[p])
                self._row(-np.inf, capacity, [(c, 1.0) for c in self._load[p] + arrives[p]])

    @staticmethod
    def _held(problem: Problem) -> tuple[list[int], list[int], list[float]]:
        held = problem.held
        return held.key.tolist(), held.pool.tolist(), held.stays_per_s(problem.demand).tolist()

    def _column(self, cost: float, upper: float = np.inf) -> int:
        self._highs.addCol(cost, 0.0, upper, 0, [], [])
        return self._highs.getNumCol() - 1

    def _row(self, lower: float, upper: float, entries: list[tuple[int, float]]) -> None:
        columns, values = [c for c, _ in entries], [v for _, v in entries]
        self._highs.addRow(lower, upper, len(entries), np.array(columns, np.int32), np.array(values, float))


def assert_costs_what_is_written_out(world: World) -> None:
    """Assert that the planner's plan has the cost of the complete program's optimum, and the cost that it reports."""
    for problem in world.problems():
        flows, claimed = optimum(problem)
        parts = evaluate(flows)
        assert abs(parts.total - claimed) <= 1e-6 * (1.0 + abs(claimed))
        # If demand exceeds all slots, the demand missing at a loss includes demand that is missing without a loss.
        assume(parts.no_room == 0.0)
        assert abs(WrittenOut(problem).cost - claimed) <= 1e-5 * (1.0 + abs(claimed))
