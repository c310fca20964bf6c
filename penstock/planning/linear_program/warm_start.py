"""Where a linear program starts: with the arcs that will most likely be used, and with everything at home.

A program of another shape (a class came, a region got the model) starts from what the one before it ended with, as far
as they have the same keys and pools; HiGHS repairs a basis that does not quite fit.
"""

from __future__ import annotations

import numpy as np

from penstock.planning.linear_program.problem import Ints, Problem, located
from penstock.planning.linear_program.program import Program
from penstock.planning.linear_program.waiting_cost import PIECES, Floats

NEAREST = 6
"""A key begins with arcs to this many permitted pools, the cheapest to reach."""

LOWER, BASIC, UPPER = 0, 1, 2
"""Where a column or row stands in a basis."""


def first_arcs(problem: Problem, before: Program | None, basis: tuple[Ints, Ints] | None) -> tuple[Ints, Ints, Floats]:
    """The arcs to begin with as (key, pool), and by key how far (s) they reach: the other pools are no nearer.

    Args:
        before: an earlier shape's program; its used arcs come along.
        basis: where that one ended.
    """
    shape = problem.shape
    pools = len(shape.pools)
    horizon_s = np.full(len(shape.keys), np.inf)
    # Limits of spillover may keep demand at its origin, be that its home or not.
    codes = [np.flatnonzero(at >= 0) * pools + at[at >= 0] for at in (problem.home, problem.origin)]
    for group in range(len(shape.groups)):
        rows = np.flatnonzero(shape.group_of == group)
        allowed = np.flatnonzero(shape.permitted[group])
        reach = problem.reach_s[np.ix_(shape.origin_of[rows], allowed)]
        some = min(NEAREST, len(allowed))
        order = np.argpartition(reach, some - 1, axis=1)[:, :some] if some else np.zeros((len(rows), 0), np.intp)
        codes.append((rows[:, None] * pools + allowed[order]).ravel())
        if some < len(allowed):
            horizon_s[rows] = np.take_along_axis(reach, order, axis=1).max(axis=1)
        whole = np.flatnonzero((problem.most[allowed] >= 1.0) & (problem.slots[allowed] > 0.0))
        if len(whole) and (problem.most[allowed] < 1.0).any():
            # Somebody must be able to take what ramps hold back.
            codes.append(rows * pools + allowed[whole[reach[:, whole].argmin(axis=1)]])
    if before is not None and basis is not None:
        keys_now, pools_now = _places(before, problem)
        used = np.flatnonzero(basis[0][before.arcs_at :] == BASIC)
        key, pool = keys_now[before.arc_key[used]], pools_now[before.arc_pool[used]]
        there = (key >= 0) & (pool >= 0)
        there[there] = shape.permitted[shape.group_of[key[there]], pool[there]]
        codes.append(key[there] * pools + pool[there])
    arcs = np.unique(np.concatenate(codes))
    return arcs // pools, arcs % pools, horizon_s


def first_basis(
    problem: Problem, program: Program, before: Program | None, basis: tuple[Ints, Ints] | None
) -> tuple[Ints, Ints]:
    """Where columns and rows begin: demand at home, each pool filled so far, no shortfall; or as `before` ended."""
    columns = np.full(program.columns, LOWER)
    load = np.bincount(np.maximum(problem.home, 0), weights=problem.demand, minlength=program.pools)
    filled = (load[:, None] > np.cumsum(problem.piece_per_s, axis=1)[:, :-1]).sum(axis=1)[:, None]
    piece = np.arange(PIECES)[None, :]
    statuses = np.where(piece < filled, UPPER, np.where(piece == filled, BASIC, LOWER))
    columns[program.loads_at : program.arcs_at] = BASIC
    order = np.lexsort((program.arc_pool != problem.home[program.arc_key], program.arc_key))
    keys, first = np.unique(program.arc_key[order], return_index=True)
    home_arc = order[first]
    if before is not None and basis is not None:
        keys_now, pools_now = _places(before, problem)
        known_pools = np.flatnonzero(pools_now >= 0)
        statuses[pools_now[known_pools]] = basis[0][: before.losses_at].reshape(-1, PIECES)[known_pools]
        home_arc = home_arc[~np.isin(keys, keys_now)]
        codes = program.arc_key * program.pools + program.arc_pool
        moves = np.flatnonzero(~before.arc_stays)
        key, pool = keys_now[before.arc_key[moves]], pools_now[before.arc_pool[moves]]
        wanted = np.where((key >= 0) & (pool >= 0), key * program.pools + pool, -1)
        at, same = located(codes, wanted)
        columns[program.arcs_at + at[same]] = basis[0][before.arcs_at + moves[same]]
    columns[: program.losses_at] = statuses.ravel()
    columns[program.arcs_at + home_arc] = BASIC
    return columns, np.full(program.rows, LOWER)


def _places(before: Program, problem: Problem) -> tuple[Ints, Ints]:
    """Where an earlier program's keys and pools are now; -1 where they are no more."""
    keys = {key: at for at, key in enumerate(problem.shape.keys)}
    pools = {name: at for at, name in enumerate(problem.shape.pools)}
    return (
        np.array([keys.get(key, -1) for key in before.shape.keys], dtype=np.intp),
        np.array([pools.get(name, -1) for name in before.shape.pools], dtype=np.intp),
    )
