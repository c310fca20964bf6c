"""The demand of one problem as flows from keys to pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.fleet.slot_placement import SlotPlacement
from penstock.planning.linear_program.arrays import Floats, Ints, summed
from penstock.planning.linear_program.problem import Pool, Problem
from penstock.planning.share_change_limit import normalised
from penstock.planning.share_moves import Key


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """Flows by (key, pool), each pair at most once."""

    problem: Problem
    key: Ints
    pool: Ints
    per_s: Floats
    """By pair, in units of work per second."""
    load_per_s: Floats
    """By capacity group, in units of work per second."""

    @classmethod
    def of_shares(cls, problem: Problem, shares: Mapping[Key, Mapping[str, float]]) -> Flows:
        """The flows of share tables; keys without a table and regions without a pool are omitted."""
        place = {pool: at for at, pool in enumerate(problem.shape.pools)}
        rows = [
            (at, place[there], problem.demand[at] * share)
            for at, key in enumerate(problem.shape.keys)
            for server, share in shares.get(key, {}).items()
            if (there := Pool(server, key.model)) in place
        ]
        keys, pools, amounts = zip(*rows, strict=True) if rows else ((), (), ())
        key, pool = np.array(keys, dtype=np.intp), np.array(pools, dtype=np.intp)
        per_s = np.array(amounts, dtype=np.float64)
        load = group_load_per_s(problem, summed(pool, per_s, len(problem.shape.pools)))
        return cls(problem, key, pool, per_s, load)

    def pool_load_per_s(self) -> Floats:
        """By pool: the units of work per second that it receives."""
        return summed(self.pool, self.per_s, len(self.problem.shape.pools))

    def by_class(self) -> Floats:
        """The flow by (class, pool), in units of work per second."""
        classes, pools = self.problem.shape.permitted.shape
        at = self.problem.shape.class_of[self.key] * pools + self.pool
        return summed(at, self.per_s, classes * pools).reshape(classes, pools)

    def shares(self) -> dict[Key, dict[str, float]]:
        """Share tables by key, each summing to 1; keys that no region can serve are omitted."""
        shape = self.problem.shape
        tables: dict[Key, dict[str, float]] = {}
        for key, pool, per_s in zip(self.key.tolist(), self.pool.tolist(), self.per_s.tolist(), strict=True):
            tables.setdefault(shape.keys[key], {})[shape.pools[pool].region] = per_s
        return {
            key: normalised(table) if len(table) > 1 else dict.fromkeys(table, 1.0) for key, table in tables.items()
        }


def slot_placement(problem: Problem, free: Floats) -> SlotPlacement[int]:
    """An empty placement of the problem's capacity groups, whose pools are filled from the group of the fewest models.

    Args:
        free: by group, the units of work per second that it takes.
    """
    shape = problem.shape
    draws: dict[int, list[int]] = {pool: [] for pool in range(len(shape.pools))}
    for pool, group in zip(shape.draw_pool.tolist(), shape.draw_group.tolist(), strict=True):
        draws[pool].append(group)
    for groups in draws.values():
        groups.sort(key=lambda group: len(shape.groups[group].models))
    return SlotPlacement(free.tolist(), draws)


def group_load_per_s(problem: Problem, pool_load_per_s: Floats) -> Floats:
    """By group: its load if each region divides the load of its pools so that its groups are evenly full.

    Load that fits in no group is assigned to the first group of its pool that has slots.
    """
    shape = problem.shape
    if not shape.shares_slots:
        return pool_load_per_s
    edges = np.cumsum(problem.piece_per_s[:, :-1], axis=1).T
    placement, below = slot_placement(problem, np.zeros(len(problem.slots))), np.zeros(len(problem.slots))
    left = pool_load_per_s.tolist()
    for edge in edges:
        placement.add_capacity((edge - below).tolist())
        below = edge
        for pool, amount in enumerate(left):
            if amount > 0.0:
                left[pool] = amount - placement.place(pool, amount)
    load: Floats = below - [placement.free(group) for group in range(len(below))]
    # Load in a group without slots would cost nothing: all pieces of such a group have width 0.
    with_slots = problem.slots[shape.draw_group] > 0.0
    for pool, group in zip(shape.draw_pool[with_slots].tolist(), shape.draw_group[with_slots].tolist(), strict=True):
        load[group], left[pool] = load[group] + left[pool], 0.0
    return load
