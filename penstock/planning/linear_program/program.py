"""The linear program of one problem: its columns and rows, and the costs and bounds of one tick.

Columns, in this order:

- `PIECES` per capacity group: the parts of its load, each with its own waiting cost;
- one per region: the shortfall, in units/s, that the loss of the region would leave;
- if models share slots, one per (pool, group) pair where the group is a part of the pool: the pool's load in the group;
- one per permitted (key, pool) pair: flow that moves there;
- one per permitted (key, pool) pair: flow that the plan in force already sends there, which costs no change.

Rows, in this order: one per key (its demand is served), one per pool (its load is the sum of its pieces), then the N-1
rows that were added. If models share slots, the load of a pool is the sum of its load in its groups, and one more row
per group follows: the load of its pools in the group is the sum of its pieces.

An N-1 row belongs to one confinement and one lost region: the load of the confinement's groups in other regions and of
its pools in the lost region, less the flow of other classes in these pools, which may leave the confinement, less the
shortfall, is at most the capacity of the other regions' groups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.planning.linear_program.arrays import Floats, Ints, located
from penstock.planning.linear_program.problem import Problem, Shape
from penstock.planning.linear_program.waiting_cost import PIECES, WAITING_PIECES


class Matrix(NamedTuple):
    """Coefficients by column or by row, in the compressed form that HiGHS takes."""

    starts: Ints
    """By column (row): the index of its first coefficient."""
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
        shape: keys, pools, groups and permitted pairs.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.keys, self.pools, self.groups = len(shape.keys), len(shape.pools), len(shape.groups)
        self.arc_key, self.arc_pool = np.nonzero(shape.permitted[shape.class_of])
        self._arc_code = self.arc_key * self.pools + self.arc_pool
        self.shortfalls_at = self.groups * PIECES
        """The first shortfall's column."""
        self.draws_at = self.shortfalls_at + len(shape.regions)
        """The first column of a pool's load in a group."""
        draws = len(shape.draw_pool) if shape.shares_slots else 0
        self.moves_at = self.draws_at + draws
        """The first column of flow that moves."""
        self.stays_at = self.moves_at + len(self.arc_key)
        """The first column of flow that stays."""
        self.columns = self.stays_at + len(self.arc_key)
        self._groups_at = self.keys + (self.pools if shape.shares_slots else 0)
        """The first row with the pieces of a group."""
        self.n_minus_one_at = self._groups_at + self.groups
        """The first N-1 row."""
        self.row_set: Ints = np.zeros(0, np.intp)
        """By N-1 row: its confinement."""
        self.row_region: Ints = np.zeros(0, np.intp)
        """By N-1 row: its lost region."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.n_minus_one_at + len(self.row_set)

    def matrix(self) -> Matrix:
        """The coefficients of all rows except N-1 rows, by column."""
        arcs = np.arange(len(self.arc_key))
        pieces = np.arange(self.shortfalls_at)
        arc_rows = [self.arc_key, self.keys + self.arc_pool]
        draws = np.arange(self.draws_at, self.moves_at)
        draw_pool, draw_group = self.shape.draw_pool[: len(draws)], self.shape.draw_group[: len(draws)]
        return _compressed(
            np.concatenate([pieces, *[self.moves_at + arcs] * 2, *[self.stays_at + arcs] * 2, draws, draws]),
            np.concatenate(
                [self._groups_at + pieces // PIECES, *arc_rows * 2, self.keys + draw_pool, self._groups_at + draw_group]
            ),
            np.concatenate(
                [np.full(len(pieces), -1.0), np.ones(4 * len(arcs)), np.full(len(draws), -1.0), np.ones(len(draws))]
            ),
            self.columns,
        )

    def add_n_minus_one(self, confinement: Ints, lost: Ints) -> Matrix:
        """Add N-1 rows.

        Args:
            confinement: by new row, the confinement.
            lost: by new row, the lost region.

        Returns:
            The coefficients of the new rows, by row.
        """
        self.row_set = np.concatenate([self.row_set, confinement])
        self.row_region = np.concatenate([self.row_region, lost])
        sets, shape = self.shape.confinements, self.shape
        emptied = (sets.inside[confinement] @ shape.permitted) & (shape.region_of[None, :] == lost[:, None])
        """By (row, pool): whether the pool is in the lost region and a confined class may use it."""
        loaded_groups = sets.groups[confinement] & (shape.group_region[None, :] != lost[:, None])
        drawn, draw = np.zeros(0, np.intp), np.zeros(0, np.intp)
        if shape.shares_slots:
            drawn, draw = np.nonzero(emptied[:, shape.draw_pool])
        else:
            loaded_groups |= emptied
        loaded, group = np.nonzero(loaded_groups)
        leaving = ~sets.inside[confinement][:, shape.class_of[self.arc_key]]
        entered, arc = np.nonzero(leaving & emptied[:, self.arc_pool])
        pieces = (group[:, None] * PIECES + np.arange(PIECES)[None, :]).ravel()
        rows = np.arange(len(lost))
        return _compressed(
            np.concatenate([np.repeat(loaded, PIECES), drawn, rows, entered, entered]),
            np.concatenate(
                [pieces, self.draws_at + draw, self.shortfalls_at + lost, self.moves_at + arc, self.stays_at + arc]
            ),
            np.concatenate([np.ones(len(pieces) + len(draw)), np.full(len(rows) + 2 * len(arc), -1.0)]),
            len(rows),
        )

    def bounds(self, problem: Problem) -> Bounds:
        """The costs and bounds of one tick."""
        price = problem.prices()
        moves, stays = slice(self.moves_at, self.stays_at), slice(self.stays_at, self.columns)
        cost, lower, upper = np.zeros(self.columns), np.zeros(self.columns), np.full(self.columns, np.inf)
        pieces = problem.piece_cost_s.copy()
        pieces[:, WAITING_PIECES] = price.past_target
        pieces[:, WAITING_PIECES + 1], pieces[:, -1] = price.yields, price.no_room
        cost[: self.shortfalls_at] = (pieces + problem.gpu_s[:, None]).ravel()
        upper[: self.shortfalls_at] = problem.piece_per_s.ravel()
        cost[self.shortfalls_at : self.draws_at] = price.reserve
        lower[self.shortfalls_at : self.draws_at] = problem.unavoidable_shortfall_per_s()
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
        remaining = self.shape.confinements.elsewhere(problem.capacity_per_s)[self.row_set, self.row_region]
        equal = np.concatenate([problem.demand, np.zeros(self.n_minus_one_at - self.keys)])
        return Bounds(
            cost,
            lower,
            upper,
            np.concatenate([equal, np.full(len(remaining), -np.inf)]),
            np.concatenate([equal, remaining]),
        )

    def flow(self, values: Floats) -> Floats:
        """By arc: the flow in units/s, of the values of all columns."""
        flow: Floats = values[self.moves_at : self.stays_at] + values[self.stays_at :]
        return flow

    def load(self, values: Floats) -> Floats:
        """By group: its load in units/s, of the values of all columns."""
        load: Floats = values[: self.shortfalls_at].reshape(self.groups, PIECES).sum(axis=1)
        return load

    def _in_force(self, problem: Problem) -> Floats:
        """By arc: the flow (units/s) that stays if nothing changes."""
        flow = np.zeros(len(self.arc_key))
        at, there = located(self._arc_code, problem.held.key * self.pools + problem.held.pool)
        flow[at[there]] = problem.held.stays_per_s(problem.demand)[there]
        return flow


def _compressed(major: Ints, minor: Ints, value: Floats, size: int) -> Matrix:
    """Coefficients sorted by their major index."""
    order = np.lexsort((minor, major))
    starts = np.searchsorted(major[order], np.arange(size + 1))
    return Matrix(starts.astype(np.int32), minor[order].astype(np.int32), value[order])
