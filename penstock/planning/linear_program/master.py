"""One model's linear program as HiGHS keeps it between ticks: only numbers change, and each solve starts from the last.

HiGHS keeps basis, factor and edge weights over changed costs and bounds and over added columns, and starts from them by
itself; `passModel` would drop them (ERGO-Code/HiGHS issues 617 and 1465). Its clock is never reset, so a time limit is
given as what it ran so far and some more (issue 1331). A warm start has been seen to call optimal what is not (issue
3194), so every answer must close its own duality gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np

from penstock.planning.linear_program.n_minus_one import Confinements
from penstock.planning.linear_program.problem import Ints, Prices, Problem, summed
from penstock.planning.linear_program.program import Entries, Numbers, Program
from penstock.planning.linear_program.waiting_cost import Floats
from penstock.planning.linear_program.warm_start import BASIC, LOWER, UPPER, first_arcs, first_basis

GROWTH = 3
"""A program that has grown to this many times its first arcs, or of its pools in cuts, is better built anew."""

MAX_GAP = 1e-6
"""The part of its cost by which an answer may miss the bound that proves it optimal."""

NEGLIGIBLE_S = 1e-5
"""A reduced cost (s) this far on the wrong side is rounding."""

_STATUS = {
    LOWER: highspy.HighsBasisStatus.kLower,
    BASIC: highspy.HighsBasisStatus.kBasic,
    UPPER: highspy.HighsBasisStatus.kUpper,
}
_MEANING = {status: number for number, status in _STATUS.items()}


class Unsolved(Exception):
    """HiGHS has no optimal answer."""


class OutOfTime(Unsolved):
    """Not yet: the next try goes on from where this one stopped."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An optimal answer of the program as it stands."""

    values: Floats
    """By column."""
    row_prices: Floats
    """By row: what one unit more on its right-hand side costs."""
    reduced_costs: Floats
    """By column: what one unit more of it would cost besides."""
    cost: float


class Master:
    """The program of one shape, inside HiGHS.

    Args:
        problem: the first problem to solve.
        sets: where demand is confined; None keeps no reserve.
        before: the program of an earlier shape, whose basis this one starts from as far as it can.
    """

    def __init__(self, problem: Problem, sets: Confinements | None, before: Master | None = None) -> None:
        self.program = Program(problem, sets)
        self._highs = _solver()
        rows, none = self.program.rows, np.zeros(0)
        self._has = Numbers(none, none, none, np.zeros(rows), np.zeros(rows))
        self._highs.addRows(
            rows, self._has.row_lower, self._has.row_upper, 0, np.zeros(rows, np.int32), np.zeros(0, np.int32), none
        )
        self._append_columns(self.program.arcs_at, self.program.fixed())
        basis = before.basis() if before is not None else None
        key, pool, self.horizon_s = first_arcs(problem, before.program if before is not None else None, basis)
        self._append_columns(len(key), self.program.add_arcs(key, pool, np.zeros(len(key), np.bool_)))
        self._first_arcs = len(key)
        self._set_basis(first_basis(problem, self.program, before.program if before is not None else None, basis))

    @property
    def ran_s(self) -> float:
        """How long HiGHS has run on this program altogether, in seconds."""
        return float(self._highs.getRunTime())

    @property
    def iterations(self) -> int:
        """Simplex iterations of the last solve."""
        return int(self._highs.getInfo().simplex_iteration_count)

    def outgrown(self) -> bool:
        """Whether so much was added that a fresh program would be faster."""
        program = self.program
        return len(program.arc_key) > GROWTH * self._first_arcs or len(program.cut_set) > GROWTH * program.pools

    def ask(self, problem: Problem, price: Prices) -> None:
        """Put a tick's numbers in: demand, capacity, prices, and what is in force."""
        _, there = self.program.stays_of(problem)
        held = problem.held
        if not there.all():
            stays = self.program.add_arcs(held.key[~there], held.pool[~there], np.ones((~there).sum(), np.bool_))
            self._append_columns(int((~there).sum()), stays)
        self._change(self.program.numbers(problem, price))

    def solve(self, limit_s: float) -> Answer:
        """Find the optimum of the program as it stands.

        Raises:
            OutOfTime: it was not found within `limit_s` seconds.
            Unsolved: HiGHS cannot find it.
        """
        ends_s = self.ran_s + limit_s
        answer = self._solve(ends_s)
        if not self._proven(answer):
            self._highs.clearSolver()
            answer = self._solve(ends_s)
            if not self._proven(answer):
                raise Unsolved("the solver's optimum does not close its duality gap")
        return answer

    def add(self, problem: Problem, price: Prices, arcs: tuple[Ints, Ints], cuts: tuple[Ints, Ints]) -> None:
        """Let keys use pools that they had no arcs to, and count the losses of pools in sets that lack room then."""
        key, pool = arcs
        if len(key):
            self._append_columns(len(key), self.program.add_arcs(key, pool, np.zeros(len(key), np.bool_)))
        if len(cuts[0]):
            self._append_rows(len(cuts[0]), self.program.add_cuts(*cuts))
        self._change(self.program.numbers(problem, price))

    def flows(self, answer: Answer) -> tuple[Ints, Ints, Floats]:
        """An answer as flows by (key, pool), each pair once."""
        program = self.program
        values = answer.values[program.arcs_at :]
        used = np.flatnonzero(values > 0.0)
        pairs, where = np.unique(program.arc_key[used] * program.pools + program.arc_pool[used], return_inverse=True)
        return pairs // program.pools, pairs % program.pools, summed(where, values[used], len(pairs))

    def basis(self) -> tuple[Ints, Ints]:
        """Where every column and every row stands."""
        held = self._highs.getBasis()
        columns, rows = (
            np.array([_MEANING.get(one, LOWER) for one in side], dtype=np.intp)
            for side in (held.col_status, held.row_status)
        )
        return columns, rows

    def _solve(self, ends_s: float) -> Answer:
        self._highs.setOptionValue("time_limit", max(ends_s, self.ran_s))
        self._highs.run()
        status = self._highs.getModelStatus()
        if status == highspy.HighsModelStatus.kTimeLimit:
            raise OutOfTime("the solver ran out of time")
        if status != highspy.HighsModelStatus.kOptimal:
            raise Unsolved(f"the solver stopped: {self._highs.modelStatusToString(status).lower()}")
        found = self._highs.getSolution()
        cost = float(self._highs.getInfo().objective_function_value)
        return Answer(np.array(found.col_value), np.array(found.row_dual), np.array(found.col_dual), cost)

    def _proven(self, answer: Answer) -> bool:
        """Whether the answer's own prices show, by weak duality, that no other answer is cheaper."""
        has, rows, columns = self._has, answer.row_prices, answer.reduced_costs
        rows = np.where(np.abs(rows) > NEGLIGIBLE_S, rows, 0.0)
        columns = np.where(np.abs(columns) > NEGLIGIBLE_S, columns, 0.0)
        with np.errstate(invalid="ignore"):
            bounds = np.concatenate(
                [
                    np.where(rows > 0.0, rows * has.row_lower, np.where(rows < 0.0, rows * has.row_upper, 0.0)),
                    np.where(columns > 0.0, columns * has.lower, np.where(columns < 0.0, columns * has.upper, 0.0)),
                ]
            )
        slack = MAX_GAP * max(1.0, abs(answer.cost)) + NEGLIGIBLE_S * float(np.abs(answer.values).sum())
        return bool(answer.cost - bounds.sum() <= slack)

    def _append_columns(self, count: int, entries: Entries) -> None:
        """Columns without cost and closed until the next change."""
        order = np.argsort(entries.column, kind="stable")
        starts = np.searchsorted(entries.column[order], np.arange(count)).astype(np.int32)
        zero = np.zeros(count)
        rows = entries.row[order].astype(np.int32)
        self._highs.addCols(count, zero, zero, zero, len(rows), starts, rows, entries.value[order])
        has = self._has
        self._has = has._replace(
            cost=np.append(has.cost, zero), lower=np.append(has.lower, zero), upper=np.append(has.upper, zero)
        )

    def _append_rows(self, count: int, entries: Entries) -> None:
        """Rows that bind nothing until the next change."""
        order = np.argsort(entries.row, kind="stable")
        starts = np.searchsorted(entries.row[order], np.arange(count)).astype(np.int32)
        lower, upper = np.full(count, -np.inf), np.full(count, np.inf)
        columns = entries.column[order].astype(np.int32)
        self._highs.addRows(count, lower, upper, len(columns), starts, columns, entries.value[order])
        has = self._has
        self._has = has._replace(row_lower=np.append(has.row_lower, lower), row_upper=np.append(has.row_upper, upper))

    def _change(self, now: Numbers) -> None:
        """Tell HiGHS what differs from what it has."""
        has, highs = self._has, self._highs
        at = np.flatnonzero(now.cost != has.cost).astype(np.int32)
        if len(at):
            highs.changeColsCost(len(at), at, now.cost[at])
        at = np.flatnonzero((now.lower != has.lower) | (now.upper != has.upper)).astype(np.int32)
        if len(at):
            highs.changeColsBounds(len(at), at, now.lower[at], now.upper[at])
        at = np.flatnonzero((now.row_lower != has.row_lower) | (now.row_upper != has.row_upper)).astype(np.int32)
        if len(at):
            highs.changeRowsBounds(len(at), at, now.row_lower[at], now.row_upper[at])  # type: ignore[attr-defined]
        self._has = now

    def _set_basis(self, statuses: tuple[Ints, Ints]) -> None:
        basis = highspy.HighsBasis()
        basis.valid = True
        basis.alien = True
        basis.col_status, basis.row_status = ([_STATUS[one] for one in side.tolist()] for side in statuses)
        self._highs.setBasis(basis)


def _solver() -> highspy.Highs:
    """Serial dual simplex: the parallel one ignores a given basis (issue 2913), interior point has none."""
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("solver", "simplex")
    highs.setOptionValue("simplex_strategy", 1)
    highs.setOptionValue("presolve", "off")
    return highs
