"""The linear program of one model: its columns and rows, and the costs and bounds of one tick.

Columns, in this order:

- `PIECES` per pool: the parts of its load, each with its own waiting cost;
- one per pool: the shortfall, in requests/s, that the loss of the pool's region would leave;
- one per permitted (key, pool) pair: flow that moves there;
- one per permitted (key, pool) pair: flow that the plan in force already sends there, which costs no change.

Rows, in this order: one per key (its demand is served), one per pool (its load is the sum of its pieces), then the N-1
rows that were added.

An N-1 row belongs to one confinement and one lost pool: the load of the confinement's pools, less the flow that entered
the lost pool from outside and may leave again, less the shortfall, is at most the capacity of the other pools.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.planning.linear_program.arrays import Floats, Ints, located
from penstock.planning.linear_program.problem import Problem, Shape
from penstock.planning.linear_program.waiting_cost import PIECES


class Matrix(NamedTuple):
    """Coefficients by column or by row, in the compressed form that HiGHS takes."""

    starts: Ints
    """By column (row): the place of its first coefficient."""
    minor: Ints
    """By coefficient: its row (column)."""
    value: Floats


class Bounds(NamedTuple):
    """Costs and bounds of every column, and bounds of every row."""

    cost: Floats
    lower: Floats
    upper: Floats
    row_lower: Floats
    row_upper: Floats


class Program:
    """The columns and rows for one shape: every permitted arc, and the N-1 rows added so far.

    Args:
        shape: keys, pools and permitted pairs.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.keys, self.pools = len(shape.keys), len(shape.pools)
        self.arc_key, self.arc_pool = np.nonzero(shape.permitted[shape.group_of])
        self._arc_code = self.arc_key * self.pools + self.arc_pool
        self.shortfalls_at = self.pools * PIECES
        """The first shortfall's column."""
        self.moves_at = self.shortfalls_at + self.pools
        """The first column of flow that moves."""
        self.stays_at = self.moves_at + len(self.arc_key)
        """The first column of flow that stays."""
        self.columns = self.stays_at + len(self.arc_key)
        self.n_minus_one_at = self.keys + self.pools
        """The first N-1 row."""
        self.row_set: Ints = np.zeros(0, np.intp)
        """By N-1 row: its confinement."""
        self.row_pool: Ints = np.zeros(0, np.intp)
        """By N-1 row: its lost pool."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.n_minus_one_at + len(self.row_set)

    def matrix(self) -> Matrix:
        """The coefficients of all rows except N-1 rows, by column."""
        arcs = np.arange(len(self.arc_key))
        pieces = np.arange(self.shortfalls_at)
        arc_rows = [self.arc_key, self.keys + self.arc_pool]
        return _compressed(
            np.concatenate([pieces, *[self.moves_at + arcs] * 2, *[self.stays_at + arcs] * 2]),
            np.concatenate([self.keys + pieces // PIECES, *arc_rows * 2]),
            np.concatenate([np.full(len(pieces), -1.0), np.ones(4 * len(arcs))]),
            self.columns,
        )

    def add_n_minus_one(self, confinement: Ints, lost: Ints) -> Matrix:
        """Add N-1 rows.

        Args:
            confinement: by new row, the confinement.
            lost: by new row, the lost pool.

        Returns:
            The coefficients of the new rows, by row.
        """
        self.row_set = np.concatenate([self.row_set, confinement])
        self.row_pool = np.concatenate([self.row_pool, lost])
        sets, shape = self.shape.confinements, self.shape
        loaded, pool = np.nonzero(sets.pools[confinement])
        leaving = ~sets.inside[confinement][:, shape.group_of[self.arc_key]]
        entered, arc = np.nonzero(leaving & (self.arc_pool[None, :] == lost[:, None]))
        pieces = (pool[:, None] * PIECES + np.arange(PIECES)[None, :]).ravel()
        rows = np.arange(len(lost))
        return _compressed(
            np.concatenate([np.repeat(loaded, PIECES), rows, entered, entered]),
            np.concatenate([pieces, self.shortfalls_at + lost, self.moves_at + arc, self.stays_at + arc]),
            np.concatenate([np.ones(len(pieces)), np.full(len(rows) + 2 * len(arc), -1.0)]),
            len(rows),
        )

    def bounds(self, problem: Problem) -> Bounds:
        """The costs and bounds of one tick."""
        price = problem.prices()
        moves, stays = slice(self.moves_at, self.stays_at), slice(self.stays_at, self.columns)
        cost, lower, upper = np.zeros(self.columns), np.zeros(self.columns), np.full(self.columns, np.inf)
        pieces = problem.piece_cost_s.copy()
        pieces[:, PIECES - 2 :] = price.past_target, price.no_room
        cost[: self.shortfalls_at] = (pieces + problem.gpu_s[:, None]).ravel()
        upper[: self.shortfalls_at] = problem.piece_per_s.ravel()
        cost[self.shortfalls_at : self.moves_at] = price.reserve
        lower[self.shortfalls_at : self.moves_at] = problem.unavoidable_shortfall_per_s()
        key, pool = self.arc_key, self.arc_pool
        cost[stays] = problem.reach_s[self.shape.origin_of[key], pool]
        cost[moves] = cost[stays] + problem.changing_s(key, pool)
        limit = problem.limits_per_s(key, pool)
        upper[stays] = np.minimum(self._in_force(problem), limit)
        upper[moves] = limit - upper[stays]
        if problem.kept.any():
            # Flow that stays costs no more than flow that moves, so an optimum fills it first.
            least = problem.min_per_s(key, pool)
            lower[stays] = np.minimum(upper[stays], least)
            lower[moves] = np.maximum(0.0, least - upper[stays])
        capacity, sets = problem.capacity_per_s, self.shape.confinements
        remaining = (sets.pools @ capacity)[self.row_set] - capacity[self.row_pool]
        equal = np.concatenate([problem.demand, np.zeros(self.pools)])
        return Bounds(
            cost,
            lower,
            upper,
            np.concatenate([equal, np.full(len(remaining), -np.inf)]),
            np.concatenate([equal, remaining]),
        )

    def flow(self, values: Floats) -> Floats:
        """By arc: the flow in requests/s, of the values of all columns."""
        flow: Floats = values[self.moves_at : self.stays_at] + values[self.stays_at :]
        return flow

    def _in_force(self, problem: Problem) -> Floats:
        """By arc: the flow (requests/s) that stays if nothing changes."""
        flow = np.zeros(len(self.arc_key))
        at, there = located(self._arc_code, problem.held.key * self.pools + problem.held.pool)
        flow[at[there]] = problem.held.stays_per_s(problem.demand)[there]
        return flow


def _compressed(major: Ints, minor: Ints, value: Floats, size: int) -> Matrix:
    """Coefficients sorted by their major index."""
    order = np.lexsort((minor, major))
    starts = np.searchsorted(major[order], np.arange(size + 1))
    return Matrix(starts.astype(np.int32), minor[order].astype(np.int32), value[order])
