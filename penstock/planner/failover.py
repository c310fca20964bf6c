"""Where demand goes the moment a region is lost, worked out beforehand, so that nobody has to ask anybody then.

Every origin's table for one loss is made together with all others': those with the fewest other regions choose first,
so that together they fit into the room that the plan kept. Where residency classes are nested or disjoint this finds a
place for all that has one; where they overlap otherwise it may send some to a region that is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from penstock.plan import Arc, ArcReason, RegionPlan
from penstock.planner.cost import flows
from penstock.planner.problem import Problem, summed
from penstock.planner.queueing import Floats
from penstock.slices import Key
from penstock.steps import without_crumbs


class Detour(msgspec.Struct, frozen=True):
    """What an origin does with one traffic class's share of a region, when that region is lost."""

    lost: str
    arcs: tuple[Arc, ...]
    """Shares of that share, which sum to 1; the nearest first, permitted regions only."""


def detours(problems: Iterable[Problem], plans: Mapping[str, RegionPlan]) -> dict[Key, tuple[Detour, ...]]:
    """For each key, a detour for every region that serves a share of it; none where no other region may and can.

    Args:
        problems: what was planned for.
        plans: the slices that come into force.
    """
    shares = {
        Key(origin, one.model, one.residency): {arc.server: arc.share for arc in one.arcs}
        for origin, plan in plans.items()
        for one in plan.classes
    }
    found: dict[Key, tuple[Detour, ...]] = {}
    for problem in problems:
        for key, detour in _model(problem, shares):
            found[key] = (*found.get(key, ()), detour)
    return found


def _model(problem: Problem, shares: Mapping[Key, Mapping[str, float]]) -> Iterable[tuple[Key, Detour]]:
    shape = problem.shape
    keys, pools, amounts = flows(problem, shares)
    load = summed(pools, amounts, len(shape.pools))
    spare = np.maximum(0.0, problem.capacity_per_s - load)
    choices = shape.permitted.sum(axis=1)[shape.group_of[keys]]
    order = np.lexsort((keys, choices, pools))
    nearest = _Nearest(problem)
    free: Floats = spare
    before = -1
    for key, lost, amount in zip(keys[order].tolist(), pools[order].tolist(), amounts[order].tolist(), strict=True):
        if lost != before:
            free, before = spare.copy(), lost
        taken: dict[str, float] = {}
        others = [pool for pool in nearest.of(key) if pool != lost]
        for pool in others:
            take = min(amount, float(free[pool]))
            if take > 0.0:
                free[pool] -= take
                amount -= take
                taken[shape.pools[pool]] = take
            if amount <= 0.0:
                break
        if others and amount > 0.0:
            first = shape.pools[others[0]]
            taken[first] = taken.get(first, 0.0) + amount
        if taken:
            arcs = tuple(Arc(name, share, ArcReason.FAILOVER) for name, share in without_crumbs(taken).items())
            yield shape.keys[key], Detour(shape.pools[lost], arcs)


class _Nearest:
    """A key's permitted pools that are alive, the cheapest to reach first."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._known: dict[tuple[int, int], list[int]] = {}

    def of(self, key: int) -> list[int]:
        shape = self._problem.shape
        origin, group = int(shape.origin_of[key]), int(shape.group_of[key])
        found = self._known.get((origin, group))
        if found is None:
            pools = np.flatnonzero(shape.permitted[group] & (self._problem.slots > 0.0))
            found = pools[np.argsort(self._problem.reach_s[origin, pools], kind="stable")].tolist()
            self._known[origin, group] = found
        return found
