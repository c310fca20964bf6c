"""Grow one model's program until its answer is optimal over every permitted arc and every loss of a region."""

from __future__ import annotations

import numpy as np

from penstock.planning.linear_program.master import Answer, Master, Unsolved
from penstock.planning.linear_program.n_minus_one import by_group, excesses
from penstock.planning.linear_program.problem import Flags, Ints, Prices, Problem, summed
from penstock.planning.linear_program.waiting_cost import Floats

MAX_ROUNDS = 40
"""A program that grows longer than this is given up; a handful of rounds is usual."""

ARCS_A_ROUND = 3
"""How many of its best missing arcs a key gets in one round."""

WORTHWHILE_S = 1e-4
"""An arc must save this much (s a request) to be worth a column."""

ELSEWHERE: Ints = np.array(-1)
"""Any pool that is nobody's home, where it does not matter which."""

NOTICEABLE_PER_S = 1e-6
"""A shortfall grows by at least this (requests/s), and by as much of the capacity, to be worth a cut."""


def solve(master: Master, problem: Problem, price: Prices, limit_s: float) -> Answer:
    """The optimum of a tick.

    Raises:
        OutOfTime: it was not found within `limit_s` seconds.
        Unsolved: it cannot be found.
    """
    ends_s = master.ran_s + limit_s
    master.ask(problem, price)
    for _ in range(MAX_ROUNDS):
        answer = master.solve(ends_s - master.ran_s)
        cuts = _missing_cuts(master, problem, answer)
        arcs = _missing_arcs(master, problem, answer)
        if not len(arcs[0]) and not len(cuts[0]):
            return answer
        master.add(problem, price, arcs, cuts)
    raise Unsolved(f"the program still grew after {MAX_ROUNDS} rounds")


def _missing_cuts(master: Master, problem: Problem, answer: Answer) -> tuple[Ints, Ints]:
    """For each pool, the confinement that lacks most at its loss, where the program does not know it."""
    program = master.program
    if program.sets is None or not len(program.open):
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    key, pool, flow = master.flows(answer)
    load = summed(pool, flow, program.pools)
    capacity = problem.capacity_per_s
    found = excesses(program.sets, by_group(problem, key, pool, flow), load, capacity)[~program.sets.settled]
    found[program.cut_set, program.cut_pool] = -np.inf
    worst = found.argmax(axis=0)
    pools = np.arange(program.pools)
    known = answer.values[program.losses_at : program.loads_at]
    lost = np.flatnonzero(found[worst, pools] > known + NOTICEABLE_PER_S * (1.0 + capacity))
    return worst[lost], lost


def _missing_arcs(master: Master, problem: Problem, answer: Answer) -> tuple[Ints, Ints]:
    """Arcs that the program lacks and that its prices say would save something (column generation)."""
    program, shape = master.program, problem.shape
    key_price = answer.row_prices[: program.keys]
    pool_price = np.tile(-answer.row_prices[program.keys : program.keys + program.pools], (len(shape.groups), 1))
    if len(program.cut_set):
        _rebate(program.outside[program.cut_set], program.cut_pool, answer.row_prices[program.cuts_at :], pool_price)
    alive = problem.slots > 0.0
    cheapest = np.where(shape.permitted & alive[None, :], pool_price, np.inf).min(axis=1, initial=np.inf)
    hopeful = np.flatnonzero(
        (master.horizon_s + cheapest[shape.group_of] < key_price - WORTHWHILE_S) & (problem.home >= 0)
    )
    keys, pools = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)]
    for group in np.unique(shape.group_of[hopeful]).tolist():
        rows = hopeful[shape.group_of[hopeful] == group]
        columns = np.flatnonzero(shape.permitted[group] & alive)
        saves = key_price[rows, None] - problem.reach_s[np.ix_(shape.origin_of[rows], columns)]
        saves -= pool_price[group, columns][None, :]
        at_home = np.arange(len(rows)), np.searchsorted(columns, problem.home[rows])
        home_saves = saves[at_home] - problem.changing_s(rows, problem.home[rows])
        saves -= problem.changing_s(rows, ELSEWHERE)[:, None]
        saves[at_home] = home_saves
        ramping = np.flatnonzero(problem.most[columns] < 1.0)
        if len(ramping):
            saves[:, ramping] = np.where(_there(master, rows, columns[ramping]), -np.inf, saves[:, ramping])
        saving = np.flatnonzero(saves.max(axis=1) > WORTHWHILE_S)
        rows, saves = rows[saving], saves[saving]
        some = min(ARCS_A_ROUND, len(columns))
        best = np.argpartition(-saves, some - 1, axis=1)[:, :some]
        row, rank = np.nonzero(np.take_along_axis(saves, best, axis=1) > WORTHWHILE_S)
        keys.append(rows[row])
        pools.append(columns[best[row, rank]])
    return np.concatenate(keys), np.concatenate(pools)


def _there(master: Master, rows: Ints, columns: Ints) -> Flags:
    """By (row, column): the program has this arc already, and the ramp of its pool is why it takes no more."""
    program = master.program
    known = (program.arc_key * program.pools + program.arc_pool)[~program.arc_stays]
    return np.isin(rows[:, None] * program.pools + columns[None, :], known)


def _rebate(outside: Flags, pool: Ints, cut_price: Floats, prices: Floats) -> None:
    """What a cut takes from a pool's price for those who need not come back when it is lost."""
    for at, lost in enumerate(pool.tolist()):
        prices[outside[at], lost] += cut_price[at]
