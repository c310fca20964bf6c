"""Where demand goes the moment a region is lost, worked out beforehand, so that nobody has to ask anybody then.

Every origin's table for one loss is made together with all others': those with the fewest other regions choose first,
so that together they fit into the room that the plan kept. Where residency classes are nested or disjoint this finds a
place for all that has one; where they overlap otherwise it may send some to a region that is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import numpy as np

from penstock.planning.change_limit import without_crumbs
from penstock.planning.linear_program.arrays import Ints
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.problem import Problem
from penstock.planning.plan import Arc, ArcReason, ClassPlan, Detour, RegionPlan
from penstock.planning.share_moves import Key

KEPT_S = 10.0
"""Tables are made anew this often (s)."""

SOON_S = 2.0
"""And this soon (s) when some region has begun to serve a class that has no table for its loss."""

MAX_ARCS = 4
"""A lost share goes to this many regions at most."""

NEAR = 32
"""A lost share nearly always fits into this many regions, the cheapest to reach; the others are looked at if not."""

PARTS = 20
"""Shares of a table that plans carry are multiples of one part in this many."""


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
    flows = Flows.of_shares(problem, shares)
    keys, pools, amounts = flows.key, flows.pool, flows.per_s
    spare = np.maximum(0.0, problem.capacity_per_s - flows.load_per_s()).tolist()
    choices = shape.permitted.sum(axis=1)[shape.group_of[keys]]
    order = np.lexsort((keys, choices, pools))
    nearest = _Nearest(problem)
    free: list[float] = spare
    before = -1
    for key, lost, amount in zip(keys[order].tolist(), pools[order].tolist(), amounts[order].tolist(), strict=True):
        if lost != before:
            free, before = spare.copy(), lost
        taken: dict[str, float] = {}
        first = ""
        for pool in nearest.of(key):
            if pool == lost:
                continue
            first = first or shape.pools[pool]
            take = min(amount, free[pool])
            if take > 0.0:
                free[pool] -= take
                amount -= take
                taken[shape.pools[pool]] = take
            if amount <= 0.0:
                break
        if first and amount > 0.0:
            taken[first] = taken.get(first, 0.0) + amount
        if taken:
            arcs = tuple(Arc(name, share, ArcReason.FAILOVER) for name, share in without_crumbs(taken).items())
            yield shape.keys[key], Detour(shape.pools[lost], arcs)


def _rounded(way: Detour) -> Detour:
    """The largest parts as round shares, in the order given: noise should not make a new plan of them."""
    if len(way.arcs) == 1:
        return way
    share = {arc.server: arc.share for arc in way.arcs}
    largest = sorted(share, key=lambda name: (-share[name], name))[:MAX_ARCS]
    whole = sum(share[name] for name in largest)
    parts = {name: round(share[name] / whole * PARTS) for name in largest}
    parts[largest[0]] += PARTS - sum(parts.values())
    arcs = [msgspec.structs.replace(arc, share=part / PARTS) for arc in way.arcs if (part := parts.get(arc.server, 0))]
    return Detour(way.lost, tuple(arcs))


class FailoverTables:
    """Keeps what plans carry of failover tables for a while, so that noise does not make a new plan every tick."""

    def __init__(self) -> None:
        self._made_at = float("-inf")
        self._lacking = False

    def added(self, plans: Mapping[str, RegionPlan], problems: Iterable[Problem], now: float) -> dict[str, RegionPlan]:
        """The slices with tables: those that they have from what is in force, until it is time for new ones.

        Args:
            now: the planner's clock, in seconds.
        """
        made = None
        if now - self._made_at >= (SOON_S if self._lacking else KEPT_S):
            made, self._made_at = detours(problems, plans), now
        self._lacking = False
        return {origin: self._slice(plan, made) for origin, plan in plans.items()}

    def _slice(self, plan: RegionPlan, made: Mapping[Key, tuple[Detour, ...]] | None) -> RegionPlan:
        if made is None:
            classes = [self._kept(one) for one in plan.classes]
        else:
            classes = [_with(one, made.get(Key(plan.region, one.model, one.residency), ())) for one in plan.classes]
        return msgspec.structs.replace(plan, classes=tuple(classes))

    def _kept(self, one: ClassPlan) -> ClassPlan:
        """A class with those of its tables that are about its arcs."""
        arcs, tables = one.arcs, one.detours
        if len(arcs) == 1 == len(tables) and tables[0].lost == arcs[0].server:
            return one
        servers = {arc.server for arc in arcs}
        kept = tuple([way for way in tables if way.lost in servers])
        self._lacking |= len(kept) < len(servers)
        return one if len(kept) == len(tables) else msgspec.structs.replace(one, detours=kept)


def _with(one: ClassPlan, made: Iterable[Detour]) -> ClassPlan:
    tables = tuple([_rounded(way) for way in made])
    return one if one.detours == tables else msgspec.structs.replace(one, detours=tables)


class _Nearest:
    """A key's permitted pools that are alive, the cheapest to reach first."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._known: dict[int, tuple[Ints, list[list[int]]]] = {}
        """By group: all of its pools that are alive, and by origin the NEAR first of them."""

    def of(self, key: int) -> Iterator[int]:
        reach_s = self._problem.reach_s
        group, origin = int(self._problem.shape.group_of[key]), int(self._problem.shape.origin_of[key])
        if group not in self._known:
            pools = np.flatnonzero(self._problem.shape.permitted[group] & (self._problem.slots > 0.0))
            near = np.broadcast_to(pools, (len(reach_s), len(pools)))
            if len(pools) > NEAR:
                near = np.sort(pools[np.argpartition(reach_s[:, pools], NEAR, axis=1)[:, :NEAR]], axis=1)
            order = np.argsort(np.take_along_axis(reach_s, near, axis=1), axis=1, kind="stable")
            self._known[group] = pools, np.take_along_axis(near, order, axis=1).tolist()
        pools, first = self._known[group]
        yield from first[origin]
        if len(pools) > NEAR:
            yield from pools[np.argsort(reach_s[origin, pools], kind="stable")][NEAR:].tolist()
