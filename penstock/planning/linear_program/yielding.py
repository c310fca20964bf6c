"""Demand that yields: regions shed requests of lower priorities first, so that they have room for higher ones.

Where demand exceeds all slots, a plan that knew no priorities would leave the surplus where it arises: a region with
requests of a high priority would shed some of them beside a region whose slots serve low priorities. Load beyond the
slots of a region is therefore cheaper as far as its own clients send requests of the lowest priority: the queue of that
region serves the higher one and sheds the lowest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from penstock.fleet.snapshot import Demand
from penstock.planning.linear_program.arrays import Floats, Ints
from penstock.planning.linear_program.problem import Shape


class Yielding(NamedTuple):
    """The demand that yields, by capacity group."""

    per_s: Floats
    """Units of work per second; 0 where no demand is of a lower priority than the highest of the problem."""
    rank: Ints
    """Rank of its priority, from 0."""
    ranks: int
    """Number of priorities of the problem, at least 1."""


def yielding(shape: Shape, demands: Iterable[Demand], origin: Ints, work: Floats) -> Yielding:
    """Return the demand of the lowest priority that the clients of each region send to it.

    Args:
        demands: by key of the shape.
        origin: by key, the pool of its origin, or -1.
        work: by pool, units of one request of its model.
    """
    rows = [(at, *row) for at, demand in zip(origin.tolist(), demands, strict=True) for row in demand.by_priority]
    priorities = sorted({priority for _, priority, _ in rows})
    per_s, rank = np.zeros(len(shape.groups)), np.zeros(len(shape.groups), np.intp)
    if len(priorities) < 2:
        return Yielding(per_s, rank, 1)
    # Of the groups of a pool, the first: the sum over groups must not exceed the demand.
    group_of = dict(zip(shape.draw_pool.tolist()[::-1], shape.draw_group.tolist()[::-1], strict=True))
    for at, priority, requests_per_s in sorted(rows, key=lambda row: -row[1]):
        if at < 0 or priority == priorities[-1]:
            continue
        group, own = group_of[at], priorities.index(priority)
        # Lower priorities come later, and replace higher ones.
        per_s[group] = requests_per_s * work[at] + (per_s[group] if rank[group] == own else 0.0)
        rank[group] = own
    return Yielding(per_s, rank, len(priorities))
