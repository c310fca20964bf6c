"""What the rows and columns of one model's linear program stand for, and a tick's numbers in their order.

Rows: one a key (its demand goes somewhere), one a pool (what arrives fills its pieces), one an open confinement (what
its pools serve), then cuts. Columns: the pieces of every pool, the shortfall at the loss of every pool, the load of
every open confinement, then arcs.

A cut says what the loss of one pool takes from one confinement, the L-shaped method's way of keeping the recourse out
of the program (Van Slyke and Wets, SIAM J. Appl. Math. 17, 1969): the load of the confinement, less what enters it from
outside at the lost pool and need not come back, less the shortfall, is no more than the other pools can serve.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.planning.linear_program.n_minus_one import Confinements
from penstock.planning.linear_program.problem import Flags, Ints, Prices, Problem, located, summed
from penstock.planning.linear_program.waiting_cost import PIECES, Floats


class Entries(NamedTuple):
    """Coefficients of the matrix."""

    row: Ints
    column: Ints
    value: Floats


class Numbers(NamedTuple):
    """What one tick puts in."""

    cost: Floats
    lower: Floats
    upper: Floats
    row_lower: Floats
    row_upper: Floats


class Program:
    """The rows and columns for one shape; arcs and cuts are added as they come to matter.

    Args:
        problem: any problem of the shape.
        sets: where demand is confined; None keeps no reserve.
    """

    def __init__(self, problem: Problem, sets: Confinements | None) -> None:
        self.shape = problem.shape
        self.sets = sets
        self.keys, self.pools = len(self.shape.keys), len(self.shape.pools)
        open_ = ~sets.settled if sets is not None else np.zeros(0, np.bool_)
        self.open: Flags = sets.pools[open_] if sets is not None else np.zeros((0, self.pools), np.bool_)
        """The confinements that others may enter, by (open set, pool)."""
        self.outside: Flags = ~sets.inside[open_] if sets is not None else np.zeros((0, 0), np.bool_)
        """By (open set, group): who those others are."""
        self.losses_at = self.pools * PIECES
        """The first shortfall's column."""
        self.loads_at = self.losses_at + (self.pools if sets is not None else 0)
        """The first confinement's column."""
        self.arcs_at = self.loads_at + len(self.open)
        """The first arc's column."""
        self.cuts_at = self.keys + self.pools + len(self.open)
        """The first cut's row."""
        self.arc_key: Ints = np.zeros(0, np.intp)
        self.arc_pool: Ints = np.zeros(0, np.intp)
        self.arc_stays: Flags = np.zeros(0, np.bool_)
        """Whether a column is for what the plan in force has there already, which is no change."""
        self.cut_set: Ints = np.zeros(0, np.intp)
        self.cut_pool: Ints = np.zeros(0, np.intp)

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.cuts_at + len(self.cut_set)

    @property
    def columns(self) -> int:
        """How many there are."""
        return self.arcs_at + len(self.arc_key)

    def fixed(self) -> Entries:
        """The entries of the columns that are always there."""
        piece_pool = np.repeat(np.arange(self.pools), PIECES)
        set_of, piece = np.nonzero(self.open[:, piece_pool])
        opened = np.arange(len(self.open))
        return Entries(
            np.concatenate([self.keys + piece_pool, self.keys + self.pools + set_of, self.keys + self.pools + opened]),
            np.concatenate([np.arange(self.losses_at), piece, self.loads_at + opened]),
            np.concatenate([np.full(self.losses_at + len(piece), -1.0), np.ones(len(opened))]),
        )

    def add_arcs(self, key: Ints, pool: Ints, stays: Flags) -> Entries:
        """Append arcs; returns their entries, columns counted from the first of them."""
        self.arc_key = np.concatenate([self.arc_key, key])
        self.arc_pool = np.concatenate([self.arc_pool, pool])
        self.arc_stays = np.concatenate([self.arc_stays, stays])
        arcs = np.arange(len(key))
        cut, entering = self._entering(self.cut_set, self.cut_pool, key, pool)
        return Entries(
            np.concatenate([key, self.keys + pool, self.cuts_at + cut]),
            np.concatenate([arcs, arcs, entering]),
            np.concatenate([np.ones(2 * len(key)), np.full(len(cut), -1.0)]),
        )

    def add_cuts(self, open_set: Ints, pool: Ints) -> Entries:
        """Append cuts; returns their entries, rows counted from the first of them."""
        self.cut_set = np.concatenate([self.cut_set, open_set])
        self.cut_pool = np.concatenate([self.cut_pool, pool])
        cuts = np.arange(len(open_set))
        cut, entering = self._entering(open_set, pool, self.arc_key, self.arc_pool)
        return Entries(
            np.concatenate([cuts, cuts, cut]),
            np.concatenate([self.loads_at + open_set, self.losses_at + pool, self.arcs_at + entering]),
            np.concatenate([np.ones(len(cuts)), np.full(len(cuts) + len(cut), -1.0)]),
        )

    def numbers(self, problem: Problem, price: Prices) -> Numbers:
        """Costs and bounds of all rows and columns."""
        return Numbers(*self._column_numbers(problem, price), *self._row_numbers(problem))

    def stays_of(self, problem: Problem) -> tuple[Ints, Flags]:
        """For each flow in force, its arc that stays, and whether there is one yet (else the arc means nothing)."""
        stays = np.flatnonzero(self.arc_stays)
        codes = self.arc_key[stays] * self.pools + self.arc_pool[stays]
        at, there = located(codes, problem.held.key * self.pools + problem.held.pool)
        return (stays[at] if len(stays) else at), there

    def _entering(self, open_set: Ints, lost: Ints, key: Ints, pool: Ints) -> tuple[Ints, Ints]:
        """(cut, arc) where the arc brings demand from outside the cut's set to the cut's pool."""
        if not len(lost) or not len(key):
            return np.zeros(0, np.intp), np.zeros(0, np.intp)
        cut, arc = np.nonzero((lost[:, None] == pool[None, :]) & self.outside[open_set][:, self.shape.group_of[key]])
        return cut, arc

    def _column_numbers(self, problem: Problem, price: Prices) -> tuple[Floats, Floats, Floats]:
        cost, lower, upper = np.zeros(self.columns), np.zeros(self.columns), np.full(self.columns, np.inf)
        pieces = problem.piece_cost_s.copy()
        pieces[:, PIECES - 2] = price.past_target
        pieces[:, PIECES - 1] = price.no_room
        cost[: self.losses_at] = (pieces + problem.gpu_s[:, None]).ravel()
        upper[: self.losses_at] = problem.piece_per_s.ravel()
        if self.sets is not None:
            cost[self.losses_at : self.loads_at] = price.reserve
            lower[self.losses_at : self.loads_at] = _unavoidable(problem, self.sets)
            lower[self.loads_at : self.arcs_at] = -np.inf
        changing = np.where(self.arc_stays, 0.0, problem.changing_s(self.arc_key, self.arc_pool))
        cost[self.arcs_at :] = problem.reach_s[self.shape.origin_of[self.arc_key], self.arc_pool] + changing
        limits = problem.limits_per_s(self.arc_key, self.arc_pool)
        staying = np.zeros(len(self.arc_key))
        stays, there = self.stays_of(problem)
        staying[stays[there]] = problem.held.stays_per_s(problem.demand)[there]
        staying = np.minimum(staying, limits)
        beside = self._beside(staying)
        upper[self.arcs_at :] = np.where(self.arc_stays, staying, limits - beside)
        if problem.kept.any():
            # What stays costs no more than what moves, so an optimum has it first.
            least = problem.min_per_s(self.arc_key, self.arc_pool)
            held_back = np.where(self.arc_stays, np.minimum(staying, least), np.maximum(0.0, least - beside))
            lower[self.arcs_at :] = held_back
        return cost, lower, upper

    def _beside(self, staying: Floats) -> Floats:
        """By arc: how much of its key and pool the arc that stays takes already."""
        codes = self.arc_key * self.pools + self.arc_pool
        mine = np.flatnonzero(self.arc_stays)
        at, there = located(codes[mine], codes)
        taken: Floats = np.where(there, staying[mine[at]] if len(mine) else 0.0, 0.0)
        return taken

    def _row_numbers(self, problem: Problem) -> tuple[Floats, Floats]:
        capacity = problem.capacity_per_s
        limits = (self.open @ capacity)[self.cut_set] - capacity[self.cut_pool]
        equal = np.concatenate([problem.demand, np.zeros(self.cuts_at - self.keys)])
        return np.concatenate([equal, np.full(len(limits), -np.inf)]), np.concatenate([equal, limits])


def _unavoidable(problem: Problem, sets: Confinements) -> Floats:
    """By pool: what its loss leaves without a place under any plan, in the confinements that nobody else may enter."""
    demand = summed(problem.shape.group_of, problem.demand, len(problem.shape.groups))
    closed = sets.settled
    capacity = problem.capacity_per_s
    # All of a settled confinement's demand is inside it, wherever the plan puts it there.
    confined = sets.inside[closed] @ demand
    lacking = confined[:, None] - (sets.pools[closed] @ capacity)[:, None] + capacity[None, :]
    least: Floats = np.where(sets.pools[closed] & (capacity > 0.0)[None, :], lacking, 0.0).max(axis=0, initial=0.0)
    return least
